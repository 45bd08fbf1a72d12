import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useParams } from "react-router";
import { commands, isStaff, live, me, server as serverQuery, type Server as ServerObject } from "../../api/queries";
import { useGroupNames } from "../../live/use-all";
import { Answer } from "../../ui/answers";
import { Button, LinkButton } from "../../ui/button";
import { CommandList } from "../../ui/command-list";
import { Labels } from "../../ui/labels";
import { Page, PageAnswer } from "../../ui/page";
import { quoted, Same } from "../../ui/same";
import { stateOf, system } from "../../ui/server-words";
import { State } from "../../ui/state";
import { Time } from "../../ui/time";
import { bytes } from "../../ui/words";
import { MEANINGS, MODES } from "../servers/policy";
import { Approve } from "./approve";
import { DeleteServer, RotateKey } from "./danger";
import { Edit } from "./edit";
import { Prompt } from "./prompt";
import "./page.css";

export default function Server() {
  const { id = "" } = useParams();
  const query = useQuery({ ...serverQuery(id), ...live, placeholderData: undefined });
  return (
    <PageAnswer query={query} what="server">
      {(server) => <Shown server={server} />}
    </PageAnswer>
  );
}

function Shown({ server }: { server: ServerObject }) {
  const user = useQuery(me()).data;
  const mayChange = isStaff(user) || (server.owner !== null && server.owner.id === user?.id);
  const [isEditing, setIsEditing] = useState(false);
  return (
    <Page
      title={server.name}
      heading={
        <span className="server-heading">
          {server.name}
          <State state={stateOf(server)} />
        </span>
      }
      actions={
        <>
          <LinkButton to={`/run?servers=${encodeURIComponent(server.name)}`}>Run with options</LinkButton>
          {mayChange && <Button onClick={() => setIsEditing(true)}>Edit</Button>}
        </>
      }
    >
      {server.registration === "pending" && <Approve server={server} />}
      <div className="server-columns">
        <div className="stack">
          {server.registration === "active" && <Prompt server={server} />}
          <History id={server.id} />
        </div>
        <aside className="stack">
          <Facts server={server} />
          {mayChange && (
            <section className="panel" aria-label="Key and deletion">
              <div className="panel-body row-of">
                <RotateKey server={server} />
                <DeleteServer server={server} />
              </div>
            </section>
          )}
        </aside>
      </div>
      <Same method="GET" path={`/api/servers/servers/${server.id}/`} farhand={`farhand run ${quoted(server.name)} -- uptime`} />
      {mayChange && <Edit server={server} mayLabel={isStaff(user)} isOpen={isEditing} onClose={() => setIsEditing(false)} />}
    </Page>
  );
}

function Facts({ server }: { server: ServerObject }) {
  const groupNames = useGroupNames();
  const names = server.groups.map((id) => groupNames.get(id) ?? `group ${id}`);
  const facts: readonly (readonly [string, React.ReactNode])[] = [
    ["System", system(server) || "–"],
    ["Address", <span className="mono">{server.remote_ip ?? "–"}</span>],
    ["Processors", server.cpu_logical_cores ?? "–"],
    ["Memory", server.physical_memory === null ? "–" : bytes(server.physical_memory)],
    ["Load", server.load === null ? "–" : server.load.toFixed(2)],
    ["Agent", server.agent_version ?? "–"],
    ["Policy", <Policy policy={server.policy} />],
    ["Account", <span className="mono">{server.default_username ?? "your own username"}</span>],
    ["Owner", server.owner?.username ?? "–"],
    ["Groups", names.join(", ") || "–"],
    [server.is_connected ? "Connected" : "Last seen", <Time at={server.is_connected ? server.connected_at : server.last_seen_at} />],
    ["Added", <Time at={server.added_at} />],
  ];
  return (
    <section className="panel">
      <h2>Facts</h2>
      <div className="panel-body">
        {Object.keys(server.labels).length > 0 && (
          <div className="server-labels">
            <Labels labels={server.labels} />
          </div>
        )}
        <dl className="facts">
          {facts.map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
        {server.identity_conflict_at && (
          <p className="tone-wait">
            Another agent with the same key was refused <Time at={server.identity_conflict_at} />. Give each host a server of its own.
          </p>
        )}
      </div>
    </section>
  );
}

function Policy({ policy }: Pick<ServerObject, "policy">) {
  if (!policy) return "–";
  const { mode, sha256 } = policy;
  return (
    <span className={mode === "none" ? "tone-wait" : undefined} title={[MEANINGS[mode], sha256 && `SHA-256 ${sha256}`].filter(Boolean).join("\n")}>
      {MODES.find(([name]) => name === mode)?.[1]}
    </span>
  );
}

function History({ id }: { id: string }) {
  const query = useQuery({ ...commands({ server: id, page_size: 15 }), ...live });
  return (
    <section className="panel">
      <header>
        <h2>Commands</h2>
        <LinkButton look="quiet" to={`/history?server=${id}`}>
          All
        </LinkButton>
      </header>
      <Answer query={query}>
        {({ results }) =>
          results.length > 0 ? <CommandList commands={results} isOfOneServer /> : <p className="panel-body muted">No command has run here.</p>
        }
      </Answer>
    </section>
  );
}
