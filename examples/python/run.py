"""Runs a command on a server, prints its output, and ends with its exit code.

    FARHAND_URL=https://acme.eu1.example.com FARHAND_TOKEN=... python3 run.py web-1 'uptime'

Without FARHAND_TOKEN it logs in with FARHAND_USERNAME and FARHAND_PASSWORD.
FARHAND_ACCOUNT is the account on the host.
FARHAND_WAIT is how many seconds one request waits for the end of the command (1 to 60, default 30).
Exit code 125: the command could not be run, or did not end with an exit code.
Needs httpx (Debian: python3-httpx).
"""

import os
import sys
import uuid

import httpx

COULD_NOT_RUN = 125
WAIT_SECONDS = int(os.environ.get("FARHAND_WAIT", "30"))


class ServiceError(Exception):
    """An error response of the service."""


def checked(response: httpx.Response) -> dict:
    """Returns the body of a success. Raises the messages of the service for everything else.

    An error response has a list of messages for each bad field, or `detail`.
    """
    if response.is_success:
        return response.json()
    try:
        body = response.json()
        fields = [f"{field}: {' '.join(texts)}" for field, texts in body.items() if isinstance(texts, list)]
        message = "; ".join(fields) or body["detail"]
    except (ValueError, AttributeError, KeyError):
        message = response.text
    raise ServiceError(f"{response.status_code}: {message}")


def token(client: httpx.Client) -> str:
    if key := os.environ.get("FARHAND_TOKEN"):
        return key
    credentials = {"username": os.environ["FARHAND_USERNAME"], "password": os.environ["FARHAND_PASSWORD"]}
    return checked(client.post("/api/auth/login/", json=credentials))["token"]


def run(client: httpx.Client, server: str, line: str) -> dict:
    """Runs a command and waits until it has ended."""
    command = {"server": server, "line": line}
    if account := os.environ.get("FARHAND_ACCOUNT"):
        command["username"] = account
    headers = {
        "Prefer": f"wait={WAIT_SECONDS}",
        # If the answer is lost, a second request with the same key does not run the command again.
        "Idempotency-Key": str(uuid.uuid4()),
    }
    try:
        response = client.post("/api/events/commands/", json=command, headers=headers)
    except httpx.TransportError:
        response = client.post("/api/events/commands/", json=command, headers=headers)
    command = checked(response)
    while command["handled_at"] is None:
        path = f"/api/events/commands/{command['id']}/"
        command = checked(client.get(path, params={"wait": WAIT_SECONDS}))
    return command


def main() -> int:
    server, line = sys.argv[1:]
    with httpx.Client(base_url=os.environ["FARHAND_URL"], timeout=WAIT_SECONDS + 30) as client:
        client.headers["Authorization"] = f'token="{token(client)}"'
        command = run(client, server, line)
    sys.stdout.write(command["result"] or "")
    sys.stdout.flush()
    if command["exit_code"] is None:
        print(command["status"]["message"], file=sys.stderr)
        return COULD_NOT_RUN
    print(f"exit code {command['exit_code']}", file=sys.stderr)
    return command["exit_code"]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ServiceError, httpx.HTTPError) as error:
        print(error, file=sys.stderr)
        sys.exit(COULD_NOT_RUN)
