import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { api, read, type Schema } from "../../api/client";
import { script as scriptQuery } from "../../api/queries";
import { ActionError } from "../../ui/answers";
import { Button } from "../../ui/button";
import { Editor } from "../../ui/editor";
import { errorsFor, Field, TextField } from "../../ui/field";
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
  const [name, setName] = useState(script?.name ?? "");
  const [description, setDescription] = useState(script?.description ?? "");
  const [interpreter, setInterpreter] = useState(script?.interpreter ?? "/bin/sh");
  const [body, setBody] = useState(script?.body ?? "");
  const [parameters, setParameters] = useState<readonly ParameterDraft[]>(() => (script?.params ?? []).map(draftOf));
  const save = useMutation({
    mutationFn: () => {
      const request = { name: name.trim(), description: description.trim(), interpreter: interpreter.trim(), body, params: parameters.map(parameterOf) };
      return read(script ? api.PATCH("/api/events/scripts/{id}/", { params: { path: { id: script.id } }, body: request }) : api.POST("/api/events/scripts/", { body: request }));
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
        <TextField label="Name" required autoFocus placeholder="clean up" value={name} errors={errorsFor(save.error, "name")} onChange={(event) => setName(event.target.value)} />
        <TextField label="Interpreter" required className="mono" value={interpreter} errors={errorsFor(save.error, "interpreter")} onChange={(event) => setInterpreter(event.target.value)} />
        <TextField label="Description" placeholder="What it is for" value={description} errors={errorsFor(save.error, "description")} onChange={(event) => setDescription(event.target.value)} />
      </div>
      <Field label="Text" errors={errorsFor(save.error, "body")} hint={`${bytes(encoder.encode(body).length)} of 256 KiB`}>
        {(ids) => <Editor {...ids} required value={body} onChange={(event) => setBody(event.target.value)} />}
      </Field>
      <ParamDrafts parameters={parameters} onChange={setParameters} errors={errorsFor(save.error, "params")} />
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
