import { queryOptions, useQuery, useQueryClient } from "@tanstack/react-query";
import { useCallback, useState } from "react";
import { readAll } from "../../api/all";
import { api, read, type Schema } from "../../api/client";
import { isRefused } from "../../api/problem";
import { isStaff, liveAll, me } from "../../api/queries";
import { useNow } from "../../live/clock";
import { Answer, Empty } from "../../ui/answers";
import { Button } from "../../ui/button";
import { Confirm, Dialog } from "../../ui/dialog";
import { LeftOut } from "../../ui/left-out";
import { Page } from "../../ui/page";
import { Same } from "../../ui/same";
import { State } from "../../ui/state";
import { Time } from "../../ui/time";
import { toast } from "../../ui/toasts";
import { plural } from "../../ui/words";
import { AddServer } from "../servers/add-server";
import "../servers/page.css";

type RegistrationToken = Schema<"RegistrationToken">;

const registrationTokens = () =>
  queryOptions({
    queryKey: ["registration-tokens"],
    queryFn: ({ signal }) => readAll((query) => read(api.GET("/api/servers/registration-tokens/", { params: { query }, signal }))),
  });

export default function Registration() {
  const client = useQueryClient();
  const user = useQuery(me()).data;
  const staff = isStaff(user);
  const query = useQuery({ ...registrationTokens(), ...liveAll, enabled: staff });
  const [isAdding, setIsAdding] = useState(false);
  const close = useCallback(() => {
    setIsAdding(false);
    void client.invalidateQueries({ queryKey: ["registration-tokens"] });
  }, [client]);
  if (user && !staff) {
    return (
      <Page title="Registration tokens">
        <Empty title="Only staff see registration tokens">Ask the staff of this workspace to add servers.</Empty>
      </Page>
    );
  }
  return (
    <Page
      title="Registration tokens"
      actions={
        !isRefused(query.error) && (
          <Button look="primary" onClick={() => setIsAdding(true)}>
            Add servers
          </Button>
        )
      }
    >
      <p className="muted note-row">With such a token, the agents of new servers add themselves.</p>
      <Answer query={query}>
        {(list) =>
          list.results.length === 0 ? (
            <Empty title="There is no registration token">Create one under “Add servers”, for many servers.</Empty>
          ) : (
            <>
              <ul className="panel rows" aria-label="Registration tokens">
                {list.results.map((token) => (
                  <Row key={token.id} token={token} />
                ))}
              </ul>
              <LeftOut of={list} what="registration token" />
            </>
          )
        }
      </Answer>
      <Same method="GET" path="/api/servers/registration-tokens/" farhand="farhand api GET /api/servers/registration-tokens/" />
      <Dialog title="Add servers" isOpen={isAdding} onClose={close}>
        <AddServer />
      </Dialog>
    </Page>
  );
}

function limits({ uses, name_pattern, networks, approval, labels }: RegistrationToken): string {
  return [
    uses === null ? "any number of servers" : `${plural(uses, "further server")}`,
    name_pattern && `named ${name_pattern}`,
    networks && `from ${networks.join(", ")}`,
    approval && "each awaits approval",
    Object.keys(labels).length > 0 &&
      `with ${Object.entries(labels)
        .map(([key, value]) => `${key}=${value}`)
        .join(", ")}`,
  ]
    .filter(Boolean)
    .join("; ");
}

function Row({ token }: { token: RegistrationToken }) {
  const client = useQueryClient();
  const [isAsking, setIsAsking] = useState(false);
  const { id, name, expires_at, uses } = token;
  const now = useNow(1_000);
  const hasExpired = expires_at !== null && Date.parse(expires_at) < now;
  const revoke = async () => {
    await read(api.DELETE("/api/servers/registration-tokens/{id}/", { params: { path: { id } } }));
    void client.invalidateQueries({ queryKey: ["registration-tokens"] });
    toast(`${name} is revoked.`);
  };
  return (
    <li>
      <div className="rows-head">
        <strong className="rows-name">{name}</strong>
        {(hasExpired || uses === 0) && <State state="expired">{hasExpired ? "expired" : "used up"}</State>}
        <span className="rows-text muted ellipsis" title={limits(token)}>
          {limits(token)}
        </span>
        <span className="muted rows-time">
          {expires_at === null ? (
            "does not expire"
          ) : (
            <>
              {hasExpired ? "expired" : "expires"} <Time at={expires_at} />
            </>
          )}
        </span>
        <Button look="quiet" aria-label={`Revoke ${name}`} onClick={() => setIsAsking(true)}>
          Revoke
        </Button>
      </div>
      <Confirm title={`Revoke ${name}?`} isOpen={isAsking} onClose={() => setIsAsking(false)} verb={`Revoke ${name}`} action={revoke}>
        <p>No further server registers with it. Servers that have registered stay.</p>
      </Confirm>
    </li>
  );
}
