import { useQuery } from "@tanstack/react-query";
import { useId, useState } from "react";
import { allGroups, servers as serversQuery } from "../../api/queries";
import { useAll } from "../../live/use-all";
import { useSettled } from "../../live/use-settled";
import { errorsFor, Field } from "../../ui/field";
import { LeftOut } from "../../ui/left-out";
import { SelectorInput } from "../../ui/selector-input";
import { number } from "../../ui/words";
import type { Targets } from "./targets";

interface TargetFieldsProps {
  targets: Targets;
  onChange: (targets: Targets) => void;
  error: unknown;
}

/** Maximum number of chosen servers that are shown by name. */
const MAX_CHIPS = 30;
const SUGGESTIONS = 20;

/** Which servers: by name, by group, by a selector of labels, or all. */
export function TargetFields({ targets, onChange, error }: TargetFieldsProps) {
  const groups = useAll(allGroups());
  const toggle = (id: number) =>
    onChange({ ...targets, groups: targets.groups.includes(id) ? targets.groups.filter((one) => one !== id) : [...targets.groups, id] });
  return (
    <fieldset className="targets">
      <legend>On</legend>
      <Servers
        names={targets.servers}
        onChange={(servers) => onChange({ ...targets, servers })}
        errors={[...errorsFor(error, "servers"), ...errorsFor(error, "server")]}
      />
      <div className="field">
        <span className="field-label">Labels</span>
        <SelectorInput value={targets.selector} onChange={(selector) => onChange({ ...targets, selector })} errors={errorsFor(error, "selector")} />
      </div>
      {groups.results.length > 0 && (
        <div className="field">
          <span className="field-label">Groups</span>
          <span className="row-of">
            {groups.results.map(({ id, display_name, name }) => (
              <label key={id} className="check">
                <input type="checkbox" checked={targets.groups.includes(id)} onChange={() => toggle(id)} />
                {display_name || name}
              </label>
            ))}
          </span>
          <LeftOut of={groups} what="group" />
        </div>
      )}
      <label className="check">
        <input type="checkbox" checked={targets.all} onChange={(event) => onChange({ ...targets, all: event.target.checked })} />
        All servers
      </label>
    </fieldset>
  );
}

function Servers({ names, onChange, errors }: { names: readonly string[]; onChange: (names: readonly string[]) => void; errors: readonly string[] }) {
  const list = useId();
  const [text, setText] = useState("");
  const search = useSettled(text.trim(), 150);
  const found = useQuery({ ...serversQuery({ search, page_size: SUGGESTIONS, ordering: "name" }), enabled: search !== "" });
  const suggestions = (found.data?.results ?? []).map(({ name }) => name).filter((name) => !names.includes(name));
  const add = (text: string) => {
    const added = text.split(/[\s,]+/).filter((name) => name !== "" && !names.includes(name));
    if (added.length > 0) onChange([...names, ...added]);
    setText("");
  };
  return (
    <Field label="Servers" errors={errors}>
      {(ids) => (
        <div className="server-chips">
          {names.length > MAX_CHIPS ? (
            <span className="chip">
              {number(names.length)} servers
              <button type="button" aria-label="Remove all servers" onClick={() => onChange([])}>
                ×
              </button>
            </span>
          ) : (
            names.map((name) => (
              <span key={name} className="chip">
                {name}
                <button type="button" aria-label={`Remove ${name}`} onClick={() => onChange(names.filter((one) => one !== name))}>
                  ×
                </button>
              </span>
            ))
          )}
          <input
            {...ids}
            list={list}
            autoComplete="off"
            autoCapitalize="none"
            spellCheck={false}
            placeholder={names.length === 0 ? "Names of servers" : ""}
            value={text}
            onChange={(event) => {
              const { value } = event.target;
              // A choice of the list, or a comma, completes a name. Typing "web-1" does not, because it may become "web-10".
              const { inputType = "" } = event.nativeEvent as InputEvent;
              const isTyped = /^(?:insertText|delete)/.test(inputType);
              if ((!isTyped && suggestions.includes(value)) || /[\s,]$/.test(value)) add(value);
              else setText(value);
            }}
            onBlur={() => add(text)}
            onKeyDown={(event) => {
              if (event.key === "Enter" && text.trim() !== "") {
                event.preventDefault();
                add(text);
              } else if (event.key === "Backspace" && text === "" && names.length > 0) {
                onChange(names.slice(0, -1));
              }
            }}
          />
          <datalist id={list}>
            {suggestions.map((name) => (
              <option key={name} value={name} />
            ))}
          </datalist>
        </div>
      )}
    </Field>
  );
}
