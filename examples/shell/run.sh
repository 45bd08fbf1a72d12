#!/bin/sh
# Runs a command on a server, prints its output, and ends with its exit code.
#
#   FARHAND_URL=https://acme.eu1.example.com FARHAND_TOKEN=... ./run.sh web-1 'uptime'
#
# Without FARHAND_TOKEN it logs in with FARHAND_USERNAME and FARHAND_PASSWORD.
# FARHAND_ACCOUNT is the account on the host.
# FARHAND_WAIT is how many seconds one request waits for the end of the command (1 to 60, default
# 30). Exit code 125: the command could not be run, or did not end with an exit code.
set -u
wait=${FARHAND_WAIT:-30}
: "${FARHAND_URL:?}" "${1:?the name of the server}" "${2:?the command line}"

# An error response has a list of messages for each bad field, or `detail`.
MESSAGE='[to_entries[] | select(.value | arrays) | "\(.key): \(.value | join(" "))"] as $fields
  | if $fields == [] then .detail else $fields | join("; ") end'

fail() {
  printf '%s\n' "$1" >&2
  exit 125
}

# Prints the body of the answer. Fails with the message of the service if the status is not 2xx.
request() {
  answer=$(curl --silent --show-error --max-time 90 --write-out '\n%{http_code}' \
    -H 'Content-Type: application/json' "$@") || fail "no answer from $FARHAND_URL"
  status=${answer##*
}
  body=${answer%
*}
  case $status in
    2??) printf '%s' "$body" ;;
    *) fail "$status: $(printf '%s' "$body" | jq -r "$MESSAGE")" ;;
  esac
}

if [ -z "${FARHAND_TOKEN:-}" ]; then
  : "${FARHAND_USERNAME:?}" "${FARHAND_PASSWORD:?}"
  login=$(jq -n '{username: env.FARHAND_USERNAME, password: env.FARHAND_PASSWORD}')
  # The password goes through standard input, so that it is not in the process list.
  login=$(printf '%s' "$login" | request "$FARHAND_URL/api/auth/login/" --data @-) || exit
  FARHAND_TOKEN=$(printf '%s' "$login" | jq -r .token)
fi

# The token goes through standard input as well.
with_token() {
  request --config - "$@" <<END
header = "Authorization: token=\\"$FARHAND_TOKEN\\""
END
}

export FARHAND_ACCOUNT="${FARHAND_ACCOUNT:-}"
new=$(jq -n --arg server "$1" --arg line "$2" \
  '{server: $server, line: $line} + if env.FARHAND_ACCOUNT == "" then {} else {username: env.FARHAND_ACCOUNT} end')
# If the answer is lost, a second request with the same key does not run the command again.
key=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
command=$(with_token "$FARHAND_URL/api/events/commands/" \
  -H "Prefer: wait=$wait" -H "Idempotency-Key: $key" --data "$new") || exit

id=$(printf '%s' "$command" | jq -r .id)
until printf '%s' "$command" | jq -e '.handled_at != null' > /dev/null; do
  command=$(with_token "$FARHAND_URL/api/events/commands/$id/?wait=$wait") || exit
done

printf '%s' "$command" | jq -j '.result // ""'
exit_code=$(printf '%s' "$command" | jq -r '.exit_code // empty')
[ -n "$exit_code" ] || fail "$(printf '%s' "$command" | jq -r .status.message)"
printf 'exit code %s\n' "$exit_code" >&2
exit "$exit_code"
