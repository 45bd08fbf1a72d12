import { useQuery } from "@tanstack/react-query";
import { useEffect, useEffectEvent } from "react";
import { allScripts, script as scriptQuery } from "../../api/queries";
import { useAll } from "../../live/use-all";
import { errorsFor, SelectField } from "../../ui/field";
import { leftOutOf } from "../../ui/left-out";
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
  const scripts = useAll(allScripts());
  const { isRead, results: list } = scripts;
  const chosen = useQuery({ ...scriptQuery(draft.script), enabled: isScriptId(draft.script) }).data;
  const parameters = chosen?.params ?? [];
  const texts = Object.fromEntries(Object.entries(draft.params).map(([name, value]) => [name, String(value)]));
  const choose = useEffectEvent((script: string) => onChange({ script }));
  useEffect(() => {
    // The address of a script that runs again has its name.
    if (!isRead || draft.script === "" || isScriptId(draft.script)) return;
    choose(list.find(({ name }) => name === draft.script)?.id ?? "");
  }, [isRead, list, draft.script]);
  return (
    <div className="script-fields">
      <SelectField
        label="Script"
        required
        options={[["", "Choose a script"], ...list.map(({ id, name }) => [id, name] as const)]}
        value={draft.script}
        hint={isRead && list.length === 0 ? "There are no scripts yet. Create one on the page “Scripts”." : chosen?.description || leftOutOf(scripts, "script")}
        errors={errorsFor(error, "script")}
        onChange={(event) => onChange({ script: event.target.value, params: {} })}
      />
      <ParamFields
        parameters={parameters}
        texts={texts}
        errors={errorsFor(error, "params")}
        onChange={(next) => onChange({ params: valuesOf(parameters, next) })}
      />
    </div>
  );
}
