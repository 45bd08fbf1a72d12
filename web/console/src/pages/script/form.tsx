import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { api, read, type Schema } from "../../api/client";
import { script as scriptQuery } from "../../api/queries";
import { ActionError } from "../../ui/answers";
import { Button } from "../../ui/button";
import { Editor } from "../../ui/editor";
import { errorsFor, Field, TextField } from "../../ui/field";
import { HiddenNote } from "../../ui/hidden-note";
import { bytes } from "../../ui/words";
import { draftOf, ParamDrafts, parameterOf, type ParameterDraft } from "./params";

type Script = Schema<"Script">;

interface FormProps {
  /** The script that is changed, or nothing for a new one. */
  script?: Script;
  onDone: (script: Script) => void;
  onBack: () => void;
}

const encoder = new TextEncoder();

export function ScriptForm({ script, onDone, onBack }: FormProps) {
  const client = useQueryClient();
  const [opened] = useState(script?.version);
  const [name, setName] = useState(script?.name ?? "");
  const [description, setDescription] = useState(script?.description ?? "");
  const [interpreter, setInterpreter] = useState(script?.interpreter ?? "/bin/sh");
  const [body, setBody] = useState(script?.body ?? "");
  const [parameters, setParameters] = useState<readonly ParameterDraft[]>(() => (script?.params ?? []).map(draftOf));
  /**
   * The service has no condition on a version, so the newest one is read directly before a change.
   */
  const isUnchanged = async ({ id, version }: Script) => {
    const newest = await client.fetchQuery({ ...scriptQuery(id), staleTime: 0 });
    if (newest.version !== version) throw new Error(`Version ${newest.version} was saved at this moment. Nothing is changed yet.`);
  };
  const save = useMutation({
    mutationFn: async () => {
      if (script) await isUnchanged(script);
      const request = { name: name.trim(), description: description.trim(), interpreter: interpreter.trim(), body, params: parameters.map(parameterOf) };
      return read(
        script
          ? api.PATCH("/api/events/scripts/{id}/", { params: { path: { id: script.id } }, body: request })
          : api.POST("/api/events/scripts/", { body: request }),
      );
    },
    onSuccess: (saved) => {
      client.setQueryData(scriptQuery(saved.id).queryKey, saved);
      void client.invalidateQueries({ queryKey: ["scripts"] });
      void client.invalidateQueries({ queryKey: ["script", saved.id] });
      onDone(saved);
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (!save.isPending) save.mutate();
  };
  return (
    <form className="script-form" onSubmit={submit}>
      <div className="options">
        <TextField
          label="Name"
          required
          autoFocus
          placeholder="clean up"
          value={name}
          errors={errorsFor(save.error, "name")}
          onChange={(event) => setName(event.target.value)}
        />
        <TextField
          label="Interpreter"
          required
          className="mono"
          value={interpreter}
          errors={errorsFor(save.error, "interpreter")}
          onChange={(event) => setInterpreter(event.target.value)}
        />
        <TextField
          label="Description"
          placeholder="What it is for"
          value={description}
          errors={errorsFor(save.error, "description")}
          onChange={(event) => setDescription(event.target.value)}
        />
      </div>
      <Field label="Text" errors={errorsFor(save.error, "body")} hint={`${bytes(encoder.encode(body).length)} of 256 KiB`}>
        {(ids) => <Editor {...ids} required value={body} onChange={(event) => setBody(event.target.value)} />}
      </Field>
      <HiddenNote text={body} />
      <ParamDrafts parameters={parameters} onChange={setParameters} errors={errorsFor(save.error, "params")} />
      {script && script.version !== opened && (
        <p className="tone-wait" role="alert">
          Version {script.version} was saved while this form was open.{" "}
          <a href={`/scripts/${script.id}`} target="_blank" rel="noreferrer">
            Look at it
          </a>{" "}
          before you replace it. It stays in the list of versions.
        </p>
      )}
      <ActionError error={save.error} />
      <div className="row-of">
        <Button look="primary" type="submit" isBusy={save.isPending}>
          {script ? `Save as version ${script.version + 1}` : "Create the script"}
        </Button>
        <Button onClick={onBack}>Back</Button>
      </div>
    </form>
  );
}
