import { queryOptions, useQuery } from "@tanstack/react-query";
import { api, read, type Schema } from "../../api/client";
import { errorsFor, SelectField, TextField } from "../../ui/field";
import type { Draft } from "./request";

type Parameter = Schema<"Script">["params"][number];

const scripts = () =>
  queryOptions({
    queryKey: ["scripts", "names"],
    queryFn: ({ signal }) => read(api.GET("/api/events/scripts/", { params: { query: { page_size: 100 } }, signal })),
  });

const script = (id: string) =>
  queryOptions({
    queryKey: ["script", id],
    queryFn: ({ signal }) => read(api.GET("/api/events/scripts/{id}/", { params: { path: { id } }, signal })),
    enabled: id !== "",
  });

/** A value in the type of its parameter. What is no integer stays text, and the service refuses it. */
function valueOf(type: Parameter["type"], text: string): string | number | boolean {
  if (type === "boolean") return text === "true";
  return type === "integer" && Number.isSafeInteger(Number(text)) ? Number(text) : text;
}

interface ScriptFieldProps {
  draft: Draft;
  onChange: (changes: Partial<Draft>) => void;
  error: unknown;
}

/** A script of the workspace, and a field for each of its parameters. */
export function ScriptField({ draft, onChange, error }: ScriptFieldProps) {
  const list = useQuery(scripts()).data?.results ?? [];
  const parameters = useQuery(script(draft.script)).data?.params ?? [];
  const set = ({ name, type }: Parameter, value: string) => {
    const { [name]: _, ...others } = draft.params;
    // An empty field is no value.
    onChange({ params: value === "" ? others : { ...others, [name]: valueOf(type, value) } });
  };
  return (
    <div className="script-fields">
      <SelectField
        label="Script"
        required
        options={[["", "Choose a script"], ...list.map(({ id, name }) => [id, name] as const)]}
        value={draft.script}
        errors={errorsFor(error, "script")}
        onChange={(event) => onChange({ script: event.target.value, params: {} })}
      />
      {parameters.map((parameter) => (
        <ParameterField key={parameter.name} parameter={parameter} value={String(draft.params[parameter.name] ?? "")} onChange={(value) => set(parameter, value)} />
      ))}
      {errorsFor(error, "params").map((message) => (
        <p key={message} className="error">
          {message}
        </p>
      ))}
    </div>
  );
}

function ParameterField({ parameter, value, onChange }: { parameter: Parameter; value: string; onChange: (value: string) => void }) {
  const { name, type, required, default: preset, choices } = parameter;
  const hint = preset === undefined ? (required ? "Required." : undefined) : `Default: ${String(preset)}`;
  if (type === "boolean" || type === "choice") {
    const values = type === "boolean" ? ["true", "false"] : (choices ?? []);
    return <SelectField label={name} hint={hint} required={required} options={[["", "–"], ...values.map((choice) => [choice, choice] as const)]} value={value} onChange={(event) => onChange(event.target.value)} />;
  }
  return <TextField label={name} hint={hint} required={required && preset === undefined} type={type === "integer" ? "number" : "text"} value={value} onChange={(event) => onChange(event.target.value)} />;
}
