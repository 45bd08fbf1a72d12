import { queryOptions, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { Link } from "react-router";
import { readAll } from "../../api/all";
import { api, read } from "../../api/client";
import { isStaff, liveAll, me, type Server } from "../../api/queries";
import { ActionError, Answer, Empty } from "../../ui/answers";
import { Button } from "../../ui/button";
import { Dialog } from "../../ui/dialog";
import { errorsFor, TextField } from "../../ui/field";
import { Labels } from "../../ui/labels";
import { LeftOut } from "../../ui/left-out";
import { Page } from "../../ui/page";
import { Same } from "../../ui/same";
import { Time } from "../../ui/time";
import { toast } from "../../ui/toasts";
import "../servers/page.css";

/** Maximum of `page_size` of lists of servers (contract 3.7). */
const PAGE_SIZE = 1_000;

const deletedServers = () =>
  queryOptions({
    queryKey: ["servers", "deleted"],
    queryFn: ({ signal }) =>
      readAll((query) => read(api.GET("/api/servers/", { params: { query: { ...query, deleted: true } }, signal })), { pageSize: PAGE_SIZE }),
  });

export default function DeletedServers() {
  const user = useQuery(me()).data;
  const staff = isStaff(user);
  const query = useQuery({ ...deletedServers(), ...liveAll, enabled: staff });
  const heading = (
    <>
      <Link to="/servers">Servers</Link> / Deleted
    </>
  );
  return (
    <Page title="Deleted servers" heading={heading}>
      {user && !staff ? (
        <Empty title="Only staff see deleted servers">Ask the staff of this workspace to undelete a server.</Empty>
      ) : (
        <Answer query={query}>
          {(list) =>
            list.results.length === 0 ? (
              <Empty title="There is no deleted server">A deleted server can be undeleted for some days.</Empty>
            ) : (
              <>
                <ul className="panel rows" aria-label="Deleted servers">
                  {list.results.map((server) => (
                    <Row key={server.id} server={server} />
                  ))}
                </ul>
                <LeftOut of={list} what="deleted server" />
              </>
            )
          }
        </Answer>
      )}
      <Same method="GET" path="/api/servers/servers/?deleted=true" farhand="farhand servers --deleted" />
    </Page>
  );
}

function Row({ server }: { server: Server }) {
  const [isAsking, setIsAsking] = useState(false);
  const { name, labels, deleted_at, deleted_by, purge_at } = server;
  return (
    <li>
      <div className="rows-head">
        <strong className="rows-name">{name}</strong>
        <span className="rows-text muted">
          <Labels labels={labels} />
        </span>
        <span className="muted rows-time">
          deleted by {deleted_by ?? "its agent"} <Time at={deleted_at} />, purged <Time at={purge_at} />
        </span>
        <Button look="quiet" aria-label={`Undelete ${name}`} onClick={() => setIsAsking(true)}>
          Undelete
        </Button>
      </div>
      <Dialog title={`Undelete ${name}?`} isOpen={isAsking} onClose={() => setIsAsking(false)}>
        <Undelete server={server} onDone={() => setIsAsking(false)} />
      </Dialog>
    </li>
  );
}

/** Asks for the name, because another server may have the old one. */
function Undelete({ server, onDone }: { server: Server; onDone: () => void }) {
  const [name, setName] = useState(server.name);
  const client = useQueryClient();
  const undelete = useMutation({
    mutationFn: () => read(api.POST("/api/servers/servers/{id}/undelete/", { params: { path: { id: server.id } }, body: { name: name.trim() } })),
    onSuccess: (restored) => {
      void client.invalidateQueries({ queryKey: ["servers"] });
      toast(`${restored.name} is undeleted.`);
      onDone();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    undelete.mutate();
  };
  const errors = errorsFor(undelete.error, "name");
  return (
    <form className="form" onSubmit={submit}>
      <p>Its agent connects again by itself. Commands that the deletion cancelled stay cancelled.</p>
      <TextField label="Name" required value={name} errors={errors} onChange={(event) => setName(event.target.value)} />
      {errors.length === 0 && <ActionError error={undelete.error} />}
      <div className="dialog-actions">
        <Button onClick={onDone}>Back</Button>
        <Button look="primary" type="submit" isBusy={undelete.isPending}>
          Undelete
        </Button>
      </div>
    </form>
  );
}
