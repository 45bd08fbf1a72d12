import { queryOptions, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useNavigate, useParams } from "react-router";
import { readAll } from "../../api/all";
import { api, read, type Schema } from "../../api/client";
import { isStaff, live, liveAll, me, script as scriptQuery } from "../../api/queries";
import { useAddress } from "../../live/use-address";
import { visible } from "../../output/visible";
import { Answer, Empty, Loading } from "../../ui/answers";
import { Button, LinkButton } from "../../ui/button";
import { Copy } from "../../ui/copy";
import { Confirm } from "../../ui/dialog";
import { Source } from "../../ui/editor";
import { LeftOut } from "../../ui/left-out";
import { Page, PageAnswer } from "../../ui/page";
import { quoted, Same } from "../../ui/same";
import { Time } from "../../ui/time";
import { toast } from "../../ui/toasts";
import { bytes } from "../../ui/words";
import { ScriptForm } from "./form";
import { RunScript } from "./run";
import "../server/page.css";
import "./page.css";

type ScriptObject = Schema<"Script">;
type Version = Schema<"ScriptVersion">;
const DEFAULTS = { version: "", edit: "", run: "" };

const versions = (id: string) =>
  queryOptions({
    queryKey: ["script", id, "versions"],
    queryFn: ({ signal }) =>
      readAll((query) => read(api.GET("/api/events/scripts/{id}/versions/", { params: { path: { id }, query }, signal })), { keyOf: ({ version }) => version }),
  });

const versionOf = (id: string, version: number) =>
  queryOptions({
    queryKey: ["script", id, "versions", version],
    queryFn: ({ signal }) => read(api.GET("/api/events/scripts/{id}/versions/{version}/", { params: { path: { id, version } }, signal })),
    staleTime: Infinity,
  });

export default function Script() {
  const { id = "" } = useParams();
  const navigate = useNavigate();
  const query = useQuery({ ...scriptQuery(id), ...live, placeholderData: undefined, enabled: id !== "new" });
  const user = useQuery(me()).data;
  if (id === "new") {
    if (!user) return <Loading />;
    if (!isStaff(user)) {
      return (
        <Page title="Create a script">
          <Empty title="Only staff write scripts">Ask the staff of this workspace.</Empty>
        </Page>
      );
    }
    return (
      <Page title="Create a script">
        <ScriptForm onDone={(script) => void navigate(`/scripts/${script.id}`)} onBack={() => void navigate("/scripts")} />
        <Same
          method="POST"
          path="/api/events/scripts/"
          body={{ name: "clean up", body: "#!/bin/sh\necho hello\n" }}
          farhand="farhand scripts create 'clean up' --file cleanup.sh"
        />
      </Page>
    );
  }
  return (
    <PageAnswer query={query} what="script">
      {(script) => <Shown key={script.id} script={script} />}
    </PageAnswer>
  );
}

function Shown({ script }: { script: ScriptObject }) {
  const [view, setView] = useAddress(DEFAULTS);
  const staff = isStaff(useQuery(me()).data);
  const { id, name, description } = script;
  const number = Number(view.version) || script.version;
  const version = useQuery(versionOf(id, number));
  if (view.edit !== "" && staff) {
    return (
      <Page title={`Change ${visible(name)}`}>
        <ScriptForm script={script} onDone={() => setView({ edit: "", version: "" })} onBack={() => setView({ edit: "" })} />
      </Page>
    );
  }
  const isRunning = view.run !== "";
  return (
    <Page
      title={visible(name)}
      actions={
        <>
          {!isRunning && (
            <Button look="primary" onClick={() => setView({ run: "true" })}>
              Run
            </Button>
          )}
          <LinkButton to={`/schedules?new=true&script=${id}`}>Schedule</LinkButton>
          {staff && <Button onClick={() => setView({ edit: "true" })}>Change</Button>}
          {staff && <Delete script={script} />}
        </>
      }
    >
      {description && <p className="script-description">{visible(description)}</p>}
      <div className="server-columns">
        <div className="stack">
          {isRunning && version.data && <RunScript script={script} version={number} parameters={version.data.params} />}
          <Answer query={version}>
            {(shown) => (
              <>
                <section>
                  <header className="row-of script-head">
                    <h2>Version {shown.version}</h2>
                    <span className="muted">
                      <code>{shown.interpreter}</code>, {bytes(shown.body_bytes)}
                    </span>
                    {shown.body !== null && <Copy text={shown.body} />}
                    {number !== script.version && <Link to={`/scripts/${id}`}>Show the latest</Link>}
                  </header>
                  {shown.body === null ? (
                    <Empty title="You cannot read the text">Staff, its author, and users with a schedule of the script can.</Empty>
                  ) : (
                    <Source text={shown.body} label={`Text of version ${shown.version}`} />
                  )}
                </section>
                <Parameters parameters={shown.params} />
              </>
            )}
          </Answer>
        </div>
        <Versions id={id} shown={number} />
      </div>
      <Same method="GET" path={`/api/events/scripts/${id}/`} farhand={`farhand scripts show ${quoted(name)}`} />
    </Page>
  );
}

function Parameters({ parameters }: { parameters: Version["params"] }) {
  if (parameters.length === 0) return null;
  return (
    <section className="panel">
      <h2>Parameters</h2>
      <ul className="panel-body script-params">
        {parameters.map(({ name, type, choices, default: preset, required }) => (
          <li key={name}>
            <code>PARAM_{name}</code> {type === "choice" ? `one of ${visible((choices ?? []).join(", "))}` : type}
            {preset !== undefined ? `, by default ${visible(String(preset))}` : required ? ", required" : ""}
          </li>
        ))}
      </ul>
    </section>
  );
}

function Versions({ id, shown }: { id: string; shown: number }) {
  const query = useQuery({ ...versions(id), ...liveAll });
  return (
    <section className="panel" aria-label="Versions">
      <h2>Versions</h2>
      <Answer query={query}>
        {(list) => (
          <>
            <ol className="versions">
              {list.results.map(({ version, author, added_at }) => (
                <li key={version}>
                  <Link to={`?version=${version}`} aria-current={version === shown ? "true" : undefined}>
                    Version {version}
                  </Link>
                  <span className="muted">
                    {author?.username ?? "deleted user"}, <Time at={added_at} />
                  </span>
                </li>
              ))}
            </ol>
            <LeftOut of={list} what="version" />
          </>
        )}
      </Answer>
    </section>
  );
}

function Delete({ script: { id, name } }: { script: ScriptObject }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const [isAsking, setIsAsking] = useState(false);
  const remove = async () => {
    await read(api.DELETE("/api/events/scripts/{id}/", { params: { path: { id } } }));
    void navigate("/scripts");
    client.removeQueries({ queryKey: ["script", id] });
    void client.invalidateQueries({ queryKey: ["scripts"] });
    toast(`${name} is deleted.`);
  };
  return (
    <>
      <Button look="danger" onClick={() => setIsAsking(true)}>
        Delete
      </Button>
      <Confirm title={`Delete ${name}?`} isOpen={isAsking} onClose={() => setIsAsking(false)} verb={`Delete ${name}`} action={remove}>
        <p>New commands cannot use it, and its schedules are refused. Commands that were created before still run, and the history stays.</p>
      </Confirm>
    </>
  );
}
