import { queryOptions, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { readAll } from "../../api/all";
import { api, read, type Schema } from "../../api/client";
import { liveAll } from "../../api/queries";
import { useSession } from "../../api/session";
import { signOut, signOutEverywhere } from "../../frame/sign-out";
import { visible } from "../../output/visible";
import { Answer, Empty } from "../../ui/answers";
import { Button } from "../../ui/button";
import { Confirm } from "../../ui/dialog";
import { LeftOut } from "../../ui/left-out";
import { Page } from "../../ui/page";
import { Same } from "../../ui/same";
import { Time } from "../../ui/time";
import { toast } from "../../ui/toasts";
import { deviceOf } from "./device";

type Session = Schema<"Session">;

const sessions = () =>
  queryOptions({
    queryKey: ["sessions"],
    queryFn: ({ signal }) => readAll((query) => read(api.GET("/api/auth/sessions/", { params: { query }, signal }))),
  });

export default function Sessions() {
  const query = useQuery({ ...sessions(), ...liveAll });
  const [isAsking, setIsAsking] = useState(false);
  const kind = useSession().session?.kind;
  return (
    <Page
      title="Sessions"
      actions={
        kind === "login" &&
        query.data &&
        query.data.count > 1 && (
          <Button look="danger" onClick={() => setIsAsking(true)}>
            Sign out everywhere
          </Button>
        )
      }
    >
      <p className="muted note-row">Where you are signed in. A session ends 14 days after its last use.</p>
      <Answer query={query}>
        {(list) =>
          list.results.length === 0 ? (
            <Empty title="You have no sessions">You use an API token.</Empty>
          ) : (
            <>
              <ul className="panel rows" aria-label="Sessions">
                {list.results.map((session) => (
                  <Row key={session.id} session={session} />
                ))}
              </ul>
              <LeftOut of={list} what="session" />
            </>
          )
        }
      </Answer>
      <Same method="GET" path="/api/auth/sessions/" farhand="farhand api GET /api/auth/sessions/" />
      <Confirm title="Sign out everywhere?" isOpen={isAsking} onClose={() => setIsAsking(false)} verb="Sign out everywhere" action={signOutEverywhere}>
        <p>All your sessions end, this one too. Commands that wait in them are cancelled, and their schedules are disabled. API tokens stay.</p>
      </Confirm>
    </Page>
  );
}

function Row({ session }: { session: Session }) {
  const client = useQueryClient();
  const [isAsking, setIsAsking] = useState(false);
  const { id, user_agent, remote_ip, added_at, expires_at, current } = session;
  const device = deviceOf(user_agent);
  const end = async () => {
    await read(api.DELETE("/api/auth/sessions/{id}/", { params: { path: { id } } }));
    void client.invalidateQueries({ queryKey: ["sessions"] });
    toast(`The session of ${device} has ended.`);
  };
  return (
    <li>
      <div className="rows-head">
        <span className="rows-text ellipsis" title={visible(user_agent)}>
          {device}
          {current && <span className="tone-good"> this session</span>}
        </span>
        <span className="mono">{remote_ip}</span>
        <span className="muted rows-time">
          signed in <Time at={added_at} />
        </span>
        <span className="muted rows-time">
          ends <Time at={expires_at} />
        </span>
        {current ? (
          <Button look="quiet" onClick={() => void signOut()}>
            Sign out
          </Button>
        ) : (
          <Button look="quiet" aria-label={`End the session of ${device} at ${remote_ip}`} onClick={() => setIsAsking(true)}>
            End
          </Button>
        )}
      </div>
      <Confirm title="End the session?" isOpen={isAsking} onClose={() => setIsAsking(false)} verb="End the session" action={end}>
        <p>
          {device} at {remote_ip} is signed out. Commands that wait in it are cancelled, and its schedules are disabled.
        </p>
      </Confirm>
    </li>
  );
}
