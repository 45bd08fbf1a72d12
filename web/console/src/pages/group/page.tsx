import { queryOptions, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { useNavigate, useParams } from "react-router";
import { api, read, type Schema } from "../../api/client";
import { isStaff, live, me } from "../../api/queries";
import { visible } from "../../output/visible";
import { ActionError } from "../../ui/answers";
import { Button } from "../../ui/button";
import { Confirm } from "../../ui/dialog";
import { TextField } from "../../ui/field";
import { Page, PageAnswer } from "../../ui/page";
import { Same } from "../../ui/same";
import { ServerChips } from "../../ui/server-chips";
import { toast } from "../../ui/toasts";
import { useEdits } from "../../ui/use-edits";
import { Members } from "./members";
import { memberships } from "./memberships";
import "../users/page.css";

type GroupObject = Schema<"Group">;

const group = (id: number) =>
  queryOptions({
    queryKey: ["group", id],
    queryFn: ({ signal }) => read(api.GET("/api/iam/groups/{id}/", { params: { path: { id } }, signal })),
  });

export default function Group() {
  const id = Number(useParams()["id"]);
  const query = useQuery({ ...group(id), ...live, placeholderData: undefined });
  return (
    <PageAnswer query={query} what="group">
      {(found) => <Shown key={found.id} group={found} />}
    </PageAnswer>
  );
}

function Shown({ group: found }: { group: GroupObject }) {
  const user = useQuery(me()).data;
  const staff = isStaff(user);
  const own = useQuery(memberships(found.id)).data?.results.find((one) => one.user === user?.id)?.role;
  const { id, name, display_name, description } = found;
  return (
    <Page title={visible(display_name || name)} actions={(staff || own === "owner") && <Delete group={found} />}>
      {description && <p className="muted">{visible(description)}</p>}
      <div className="stack">
        <Members group={found} role={staff ? "owner" : (own ?? "member")} user={user} />
        <Servers group={found} staff={staff} />
        {(staff || own === "owner") && <Texts group={found} />}
      </div>
      <Same method="GET" path={`/api/iam/groups/${id}/`} farhand={`farhand api GET /api/iam/groups/${id}/`} />
    </Page>
  );
}

/** A change of the group, and its queries afterwards. */
function useChange(id: number) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (body: Schema<"GroupChanges">) => read(api.PATCH("/api/iam/groups/{id}/", { params: { path: { id } }, body })),
    onSuccess: (changed) => {
      client.setQueryData(group(id).queryKey, changed);
      void client.invalidateQueries({ queryKey: ["groups"] });
      void client.invalidateQueries({ queryKey: ["servers"] });
    },
  });
}

function Servers({ group: { id, servers }, staff }: { group: GroupObject; staff: boolean }) {
  const change = useChange(id);
  return (
    <section className="panel" aria-label="Servers">
      <h2>Servers</h2>
      <div className="panel-body stack">
        <ServerChips ids={servers} isReadOnly={!staff} onChange={(ids) => change.mutate({ servers: [...ids] })} />
        <ActionError error={change.error} />
        <p className="muted">Members can access these servers. Managers and owners run commands there as any account.</p>
      </div>
    </section>
  );
}

function Texts({ group: { id, name, display_name, description } }: { group: GroupObject }) {
  const { field, changes, isChanged, clear } = useEdits({ name, display_name, description });
  const change = useChange(id);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (change.isPending) return;
    change.mutate(changes, {
      onSuccess: () => {
        clear();
        toast("The group is changed.");
      },
    });
  };
  return (
    <section className="panel" aria-label="Name and description">
      <h2>Name and description</h2>
      <form className="panel-body user-form" onSubmit={submit}>
        <TextField label="Key" required {...field("name", change.error)} />
        <TextField label="Name" {...field("display_name", change.error)} />
        <TextField label="Description" {...field("description", change.error)} />
        <div className="user-wide">
          <ActionError error={change.error} />
          <Button type="submit" isBusy={change.isPending} disabled={!isChanged}>
            Save
          </Button>
        </div>
      </form>
    </section>
  );
}

function Delete({ group: { id, name, display_name } }: { group: GroupObject }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const [isAsking, setIsAsking] = useState(false);
  const shown = display_name || name;
  const remove = async () => {
    await read(api.DELETE("/api/iam/groups/{id}/", { params: { path: { id } } }));
    void navigate("/groups");
    client.removeQueries({ queryKey: ["group", id] });
    void client.invalidateQueries({ queryKey: ["groups"] });
    toast(`${shown} is deleted.`);
  };
  return (
    <>
      <Button look="danger" onClick={() => setIsAsking(true)}>
        Delete
      </Button>
      <Confirm title={`Delete ${shown}?`} isOpen={isAsking} onClose={() => setIsAsking(false)} verb={`Delete ${shown}`} action={remove}>
        <p>Its members lose the access that they have through it. The servers stay.</p>
      </Confirm>
    </>
  );
}
