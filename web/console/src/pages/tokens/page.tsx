import { queryOptions, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { readAll } from "../../api/all";
import { api, read, type Schema } from "../../api/client";
import { isRefused } from "../../api/problem";
import { liveAll } from "../../api/queries";
import { useAddress } from "../../live/use-address";
import { useNow } from "../../live/clock";
import { ActionError, Answer, Empty } from "../../ui/answers";
import { Button } from "../../ui/button";
import { Confirm } from "../../ui/dialog";
import { LeftOut } from "../../ui/left-out";
import { Page } from "../../ui/page";
import { Same } from "../../ui/same";
import { State } from "../../ui/state";
import { Time } from "../../ui/time";
import { toast } from "../../ui/toasts";
import { limitsOf } from "./acl";
import { CreateToken } from "./create";
import { LineCheck } from "./line-check";
import "./page.css";

type Token = Schema<"ApiToken">;
const DEFAULTS = { new: "", open: "" };

const tokens = () =>
  queryOptions({
    queryKey: ["tokens"],
    queryFn: ({ signal }) => readAll((query) => read(api.GET("/api/auth/tokens/", { params: { query }, signal }))),
  });

export default function Tokens() {
  const [view, setView] = useAddress(DEFAULTS);
  const query = useQuery({ ...tokens(), ...liveAll });
  const isCreating = view.new !== "";
  return (
    <Page
      title="Tokens"
      actions={
        !isCreating &&
        !isRefused(query.error) && (
          <Button look="primary" onClick={() => setView({ new: "true" })}>
            Create a token
          </Button>
        )
      }
    >
      <div className="stack">
        <p className="muted">A token lets a program act for you: as much as you can do, or less.</p>
        {isCreating && !isRefused(query.error) && <CreateToken onClose={() => setView({ new: "" })} />}
        <Answer query={query}>
          {(list) =>
            list.results.length === 0 ? (
              !isCreating && <Empty title="You have no tokens">Create one for each program, so that you can revoke it alone.</Empty>
            ) : (
              <>
                <ul className="panel rows" aria-label="Tokens">
                  {list.results.map((token) => (
                    <Row key={token.id} token={token} isOpen={view.open === token.id} onOpen={(isOpen) => setView({ open: isOpen ? token.id : "" })} />
                  ))}
                </ul>
                <LeftOut of={list} what="token" />
              </>
            )
          }
        </Answer>
      </div>
      <Same method="GET" path="/api/auth/tokens/" farhand="farhand tokens list" />
    </Page>
  );
}

function Row({ token, isOpen, onOpen }: { token: Token; isOpen: boolean; onOpen: (isOpen: boolean) => void }) {
  const client = useQueryClient();
  const [isAsking, setIsAsking] = useState(false);
  const now = useNow(1_000);
  const { id, name, enabled, acl, expires_at, last_used_at, added_at } = token;
  const hasExpired = expires_at !== null && Date.parse(expires_at) < now;
  const path = { id };
  const toggle = useMutation({
    mutationFn: () => read(api.PATCH("/api/auth/tokens/{id}/", { params: { path }, body: { enabled: !enabled } })),
    onSuccess: () => client.invalidateQueries({ queryKey: ["tokens"] }),
  });
  const revoke = async () => {
    await read(api.DELETE("/api/auth/tokens/{id}/", { params: { path } }));
    void client.invalidateQueries({ queryKey: ["tokens"] });
    toast(`${name} is revoked.`);
  };
  return (
    <li>
      <div className="rows-head">
        <button type="button" className="rows-title" aria-expanded={isOpen} onClick={() => onOpen(!isOpen)}>
          <span aria-hidden="true" className="muted">
            {isOpen ? "▾" : "▸"}
          </span>
          {name}
        </button>
        <State state={hasExpired ? "expired" : enabled ? "connected" : "offline"}>{hasExpired ? "expired" : enabled ? "valid" : "disabled"}</State>
        <span className="rows-text muted ellipsis">{limitsOf(acl).join("; ")}</span>
        <span className="muted rows-time">
          {last_used_at === null ? (
            "never used"
          ) : (
            <>
              used <Time at={last_used_at} />
            </>
          )}
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
      </div>
      {isOpen && (
        <div className="rows-body stack">
          <div>
            <h2>It allows</h2>
            <ul className="limits">
              {limitsOf(acl).map((limit) => (
                <li key={limit}>{limit}</li>
              ))}
            </ul>
            <p className="muted">
              Created <Time at={added_at} />. Id <code>{id}</code>
            </p>
          </div>
          <LineCheck subject={{ token: id }} />
          <ActionError error={toggle.error} />
          <div className="row-of">
            <Button isBusy={toggle.isPending} onClick={() => toggle.mutate()}>
              {enabled ? "Disable" : "Enable"}
            </Button>
            <Button look="danger" onClick={() => setIsAsking(true)}>
              Revoke
            </Button>
          </div>
          <Confirm title={`Revoke ${name}?`} isOpen={isAsking} onClose={() => setIsAsking(false)} verb={`Revoke ${name}`} action={revoke}>
            <p>Requests with its key are refused immediately. Commands that wait are cancelled, and its schedules are disabled. It cannot be undone.</p>
          </Confirm>
        </div>
      )}
    </li>
  );
}
