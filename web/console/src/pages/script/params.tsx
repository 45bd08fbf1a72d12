// The declarations of a script's parameters, in a form.
import type { Schema } from "../../api/client";
import type { Parameter } from "../../ui/script-params";
import { Button } from "../../ui/button";

/** A declaration as it is typed. */
export interface ParameterDraft {
  readonly name: string;
  readonly type: Parameter["type"];
  /** Separated by commas. */
  readonly choices: string;
  readonly preset: string;
  readonly required: boolean;
}

export const NEW_PARAMETER: ParameterDraft = { name: "", type: "string", choices: "", preset: "", required: false };

export const draftOf = ({ name, type, choices, default: preset, required }: Parameter): ParameterDraft => ({
  name,
  type,
  choices: (choices ?? []).join(", "),
  preset: preset === undefined ? "" : String(preset),
  required,
});

/** A declaration for a request. A default of a wrong type is sent as text, so that the service reports the error. */
export function parameterOf({ name, type, choices, preset, required }: ParameterDraft): Schema<"ScriptParameter"> {
  const isNumber = type === "integer" && /^-?\d+$/.test(preset.trim()) && Number.isSafeInteger(Number(preset));
  const isBoolean = type === "boolean" && /^(?:true|false)$/.test(preset.trim());
  return {
    name: name.trim(),
    type,
    required,
    ...(type === "choice" && {
      choices: choices
        .split(",")
        .map((choice) => choice.trim())
        .filter((choice) => choice !== ""),
    }),
    ...(preset !== "" && { default: isNumber ? Number(preset) : isBoolean ? preset.trim() === "true" : preset }),
  };
}

const TYPES: readonly (readonly [Parameter["type"], string])[] = [
  ["string", "text"],
  ["integer", "whole number"],
  ["boolean", "yes or no"],
  ["choice", "choice"],
];

interface ParamDraftsProps {
  parameters: readonly ParameterDraft[];
  onChange: (parameters: readonly ParameterDraft[]) => void;
  errors: readonly string[];
}

export function ParamDrafts({ parameters, onChange, errors }: ParamDraftsProps) {
  const change = (index: number, changes: Partial<ParameterDraft>) => onChange(parameters.map((one, at) => (at === index ? { ...one, ...changes } : one)));
  return (
    <fieldset className="params">
      <legend>Parameters</legend>
      {parameters.length === 0 && <p className="hint">The script gets the value of NAME as the environment variable PARAM_NAME.</p>}
      {parameters.map((parameter, index) => {
        const label = parameter.name || `parameter ${index + 1}`;
        return (
          <div key={index} className="param" role="group" aria-label={label}>
            <input
              className="mono"
              aria-label={`Name of ${label}`}
              placeholder="NAME"
              required
              pattern="[A-Z][A-Z0-9_]*"
              title="Capital letters, digits and underscores"
              spellCheck={false}
              value={parameter.name}
              onChange={(event) => change(index, { name: event.target.value.toUpperCase() })}
            />
            <select
              aria-label={`Type of ${label}`}
              value={parameter.type}
              onChange={(event) => change(index, { type: event.target.value as Parameter["type"] })}
            >
              {TYPES.map(([type, text]) => (
                <option key={type} value={type}>
                  {text}
                </option>
              ))}
            </select>
            {parameter.type === "choice" && (
              <input
                aria-label={`Choices of ${label}`}
                placeholder="choices: a, b, c"
                required
                value={parameter.choices}
                onChange={(event) => change(index, { choices: event.target.value })}
              />
            )}
            <input
              aria-label={`Default of ${label}`}
              placeholder="default"
              value={parameter.preset}
              onChange={(event) => change(index, { preset: event.target.value })}
            />
            <label className="check">
              <input type="checkbox" checked={parameter.required} onChange={(event) => change(index, { required: event.target.checked })} />
              required
            </label>
            <Button look="quiet" aria-label={`Remove ${label}`} onClick={() => onChange(parameters.filter((_, at) => at !== index))}>
              Remove
            </Button>
          </div>
        );
      })}
      {errors.map((error) => (
        <p key={error} className="error">
          {error}
        </p>
      ))}
      <div>
        <Button onClick={() => onChange([...parameters, NEW_PARAMETER])}>Add a parameter</Button>
      </div>
    </fieldset>
  );
}
