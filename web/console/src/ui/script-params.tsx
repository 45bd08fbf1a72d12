// The values of a script's parameters in a form (contract 14.11).
import type { Schema } from "../api/client";
import { SelectField, TextField } from "./field";

export type Parameter = Schema<"ScriptParameter">;
/** The values as they are typed. An empty text is no value. */
export type Texts = Readonly<Record<string, string>>;

/** The member `params` of a request, without those that have no value. */
export function valuesOf(parameters: readonly Parameter[], texts: Texts): Record<string, string | number | boolean> {
  const values: Record<string, string | number | boolean> = {};
  for (const { name, type } of parameters) {
    const text = texts[name] ?? "";
    if (text === "") continue;
    // A value that is not a safe integer is sent as text, so that the service reports the error.
    const isNumber = type === "integer" && text.trim() !== "" && Number.isSafeInteger(Number(text));
    values[name] = type === "boolean" ? text === "true" : isNumber ? Number(text) : text;
  }
  return values;
}

interface ParamFieldsProps {
  parameters: readonly Parameter[];
  texts: Texts;
  onChange: (texts: Texts) => void;
  /** The messages of the service. Each begins with the name of its parameter. */
  errors: readonly string[];
}

export function ParamFields({ parameters, texts, onChange, errors }: ParamFieldsProps) {
  const ofNone = errors.filter((error) => !parameters.some(({ name }) => error.startsWith(name)));
  return (
    <>
      {parameters.map(({ name, type, choices, default: preset, required }) => {
        const common = {
          label: name,
          value: texts[name] ?? "",
          required: required && preset === undefined,
          errors: errors.filter((error) => error.startsWith(name)),
          onChange: (event: { target: { value: string } }) => onChange({ ...texts, [name]: event.target.value }),
        };
        const none = preset === undefined ? (required ? "Choose" : "none") : `${String(preset)} (default)`;
        if (type === "boolean" || type === "choice") {
          const options = type === "boolean" ? ["true", "false"] : (choices ?? []);
          return <SelectField key={name} {...common} options={[["", none], ...options.map((option) => [option, option] as const)]} />;
        }
        return (
          <TextField
            key={name}
            {...common}
            inputMode={type === "integer" ? "numeric" : "text"}
            placeholder={preset === undefined ? (type === "integer" ? "a whole number" : "") : String(preset)}
          />
        );
      })}
      {ofNone.map((error) => (
        <p key={error} className="error">
          {error}
        </p>
      ))}
    </>
  );
}
