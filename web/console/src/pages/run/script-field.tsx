import { useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { allScripts, script as scriptQuery } from "../../api/queries";
import { errorsFor, SelectField } from "../../ui/field";
import { ParamFields, valuesOf } from "../../ui/script-params";
import type { Draft } from "./request";

interface ScriptFieldProps {
  draft: Draft;
  onChange: (changes: Partial<Draft>) => void;
  error: unknown;
}

export const isScriptId = (text: string) => /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(text);

/** A script of the workspace, and a field for each of its parameters. */
export function ScriptField({ draft, onChange, error }: ScriptFieldProps) {
  const list = useQuery(allScripts()).data;
  const chosen = useQuery({ ...scriptQuery(draft.script), enabled: isScriptId(draft.script) }).data;
  const parameters = chosen?.params ?? [];
  const texts = Object.fromEntries(Object.entries(draft.params).map(([name, value]) => [name, String(value)]));
  useEffect(() => {
    // The address of a script that runs again has its name.
    if (!list || draft.script === "" || isScriptId(draft.script)) return;
    onChange({ script: list.find(({ name }) => name === draft.script)?.id ?? "" });
  }, [list, draft.script]);
  return (
    <div className="script-fields">
      <SelectField
        label="Script"
        required
        options={[["", "Choose a script"], ...(list ?? []).map(({ id, name }) => [id, name] as const)]}
        value={draft.script}
        hint={list?.length === 0 ? "There are no scripts yet. Create one on the page “Scripts”." : chosen?.description || undefined}
        errors={errorsFor(error, "script")}
        onChange={(event) => onChange({ script: event.target.value, params: {} })}
      />
      <ParamFields parameters={parameters} texts={texts} errors={errorsFor(error, "params")} onChange={(next) => onChange({ params: valuesOf(parameters, next) })} />
    </div>
  );
}
