import { allScripts } from "../../api/queries";
import { useAll } from "../../live/use-all";
import { Field, TextField } from "../../ui/field";
import { LeftOut } from "../../ui/left-out";
import { SelectorInput } from "../../ui/selector-input";
import { ServerChips } from "../../ui/server-chips";
import type { Draft } from "./acl";

interface AclFieldsProps {
  draft: Draft;
  onChange: (changes: Partial<Draft>) => void;
}

/** The limits of a token. An empty field sets no limit. */
export function AclFields({ draft, onChange }: AclFieldsProps) {
  const scripts = useAll(allScripts());
  const toggle = (id: string) => onChange({ scripts: draft.scripts.includes(id) ? draft.scripts.filter((one) => one !== id) : [...draft.scripts, id] });
  const patterns = (name: "commands" | "argv", label: string, hint: string, placeholder: string) => (
    <Field label={label} hint={hint}>
      {(ids) => (
        <textarea
          {...ids}
          className="mono"
          rows={3}
          spellCheck={false}
          autoCapitalize="none"
          placeholder={placeholder}
          value={draft[name]}
          onChange={(event) => onChange({ [name]: event.target.value })}
        />
      )}
    </Field>
  );
  return (
    <fieldset className="acl">
      <legend>What it may do</legend>
      <p className="hint acl-wide">An empty field sets no limit. A token with any limit cannot manage the workspace.</p>
      {patterns(
        "commands",
        "Lines",
        "One pattern on each line. * between blanks stands for words, ** for words and options, and app-* for one word.",
        "systemctl restart -- app-*",
      )}
      {patterns("argv", "Programs without a shell", "Words on each line. * stands for any text but options, ... for further words.", "df -h ...")}
      <Field label="Servers">{() => <ServerChips ids={draft.servers} onChange={(servers) => onChange({ servers })} />}</Field>
      <div className="field">
        <span className="field-name">Servers with labels</span>
        <SelectorInput value={draft.selector} onChange={(selector) => onChange({ selector })} label="Servers with labels" />
      </div>
      <TextField
        label="Accounts"
        placeholder="deploy, www-data"
        hint="Commands run only as these."
        value={draft.usernames}
        onChange={(event) => onChange({ usernames: event.target.value })}
      />
      <TextField label="From networks" placeholder="192.0.2.0/24" value={draft.networks} onChange={(event) => onChange({ networks: event.target.value })} />
      <TextField
        label="Most servers in a batch"
        type="number"
        min={1}
        max={5_000}
        placeholder="5000"
        value={draft.maxTargets}
        onChange={(event) => onChange({ maxTargets: event.target.value })}
      />
      {scripts.results.length > 0 && (
        <div className="field" role="group" aria-label="Scripts">
          <span className="field-name">Scripts</span>
          <span className="row-of">
            {scripts.results.map(({ id, name }) => (
              <label key={id} className="check">
                <input type="checkbox" checked={draft.scripts.includes(id)} onChange={() => toggle(id)} />
                {name}
              </label>
            ))}
          </span>
          <LeftOut of={scripts} what="script" />
        </div>
      )}
      <div className="row-of acl-wide">
        <label className="check">
          <input type="checkbox" checked={draft.isReadOnly} onChange={(event) => onChange({ isReadOnly: event.target.checked })} />
          Only reads
        </label>
        <label className="check">
          <input type="checkbox" checked={draft.readsAll} onChange={(event) => onChange({ readsAll: event.target.checked })} />
          Reads all commands that you can read
        </label>
      </div>
    </fieldset>
  );
}
