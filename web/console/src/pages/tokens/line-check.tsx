import { useMutation } from "@tanstack/react-query";
import { useState, type KeyboardEvent } from "react";
import { api, read, type Schema } from "../../api/client";
import { ActionError } from "../../ui/answers";
import { Button } from "../../ui/button";
import { TextField } from "../../ui/field";
import { State } from "../../ui/state";

/** What is asked: a list that is being written, or a token. */
type Subject = { readonly acl: Schema<"AclInput"> } | { readonly token: string };

/** Asks the service whether a line would be allowed. Nothing runs. */
export function LineCheck({ subject }: { subject: Subject }) {
  const [server, setServer] = useState("");
  const [line, setLine] = useState("");
  const [username, setUsername] = useState("");
  const check = useMutation({
    mutationFn: () =>
      read(api.POST("/api/auth/acl-check/", { body: { ...subject, server: server.trim(), line, ...(username.trim() && { username: username.trim() }) } })),
  });
  const isReady = server.trim() !== "" && line.trim() !== "";
  // It is inside of the form that creates a token, so it cannot be a form.
  const onKey = (event: KeyboardEvent) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    if (isReady) check.mutate();
  };
  const input = (set: (value: string) => void) => ({
    onKeyDown: onKey,
    onChange: (event: { target: { value: string } }) => {
      set(event.target.value);
      check.reset();
    },
  });
  return (
    <div className="line-check" role="group" aria-label="Would this line be allowed?">
      <h2>Would this line be allowed?</h2>
      <div className="line-check-fields">
        <TextField label="Line" className="mono" placeholder="systemctl restart -- app-web" value={line} {...input(setLine)} />
        <TextField label="On server" placeholder="web-1" value={server} {...input(setServer)} />
        <TextField label="As" placeholder="default account" value={username} {...input(setUsername)} />
        <Button isBusy={check.isPending} disabled={!isReady} onClick={() => check.mutate()}>
          Check
        </Button>
      </div>
      <div role="status">
        {check.data && (
          <State state={check.data.allowed ? "success" : "failed"}>
            {check.data.allowed ? "Allowed" : `Refused: ${check.data.reason ?? "the list does not allow it"}`}
          </State>
        )}
      </div>
      <ActionError error={check.error} />
    </div>
  );
}
