import { useId, type ComponentProps, type ReactNode } from "react";
import { asProblem } from "../api/problem";

interface FieldProps {
  label: string;
  /** A short explanation below the input. */
  hint?: ReactNode;
  /** The messages of the service about this field. */
  errors?: readonly string[];
  children: (ids: { id: string; "aria-describedby": string | undefined; "aria-invalid": boolean | undefined }) => ReactNode;
}

/** A label, an input, its hint and its errors, connected for screen readers. */
export function Field({ label, hint, errors = [], children }: FieldProps) {
  const id = useId();
  const hasNote = hint !== undefined || errors.length > 0;
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      {children({ id, "aria-describedby": hasNote ? `${id}-note` : undefined, "aria-invalid": errors.length > 0 || undefined })}
      {hasNote && (
        <div id={`${id}-note`}>
          {errors.map((error) => (
            <p key={error} className="error">
              {error}
            </p>
          ))}
          {hint !== undefined && <div className="hint">{hint}</div>}
        </div>
      )}
    </div>
  );
}

type Common = Pick<FieldProps, "label" | "hint" | "errors">;

export function TextField({ label, hint, errors, ...input }: Common & ComponentProps<"input">) {
  return (
    <Field label={label} hint={hint} errors={errors}>
      {(ids) => <input type="text" autoComplete="off" spellCheck={false} {...input} {...ids} />}
    </Field>
  );
}

export function SelectField({
  label,
  hint,
  errors,
  options,
  ...select
}: Common & ComponentProps<"select"> & { options: readonly (readonly [string, string])[] }) {
  return (
    <Field label={label} hint={hint} errors={errors}>
      {(ids) => (
        <select {...select} {...ids}>
          {options.map(([value, text]) => (
            <option key={value} value={value}>
              {text}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

/** The messages of an error for one field of a form. */
export const errorsFor = (error: unknown, field: string) => (error ? (asProblem(error).fields[field] ?? []) : []);
