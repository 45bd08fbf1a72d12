import type { Problem } from "../../api/problem";
import { useTyped } from "../../live/use-typed";
import { SelectorInput } from "../../ui/selector-input";
import { MODES } from "./policy";
import type { Filter } from "./query";

interface FiltersProps {
  filter: Filter;
  onChange: (changes: Partial<Filter>) => void;
  problem: Problem | null;
}

/** Search, selector, state and policy of the list of servers. */
export function Filters({ filter, onChange, problem }: FiltersProps) {
  const [search, setSearch] = useTyped(filter.search, (value) => onChange({ search: value }));
  const [label, setLabel] = useTyped(filter.label, (value) => onChange({ label: value }));
  return (
    <div className="toolbar" role="search">
      <input className="grow" type="search" aria-label="Search" placeholder="Search" value={search} onChange={(event) => setSearch(event.target.value)} />
      <SelectorInput className="grow" value={label} onChange={setLabel} errors={problem?.fields["label"] ?? []} />
      <select className="grow" aria-label="State" value={filter.state} onChange={(event) => onChange({ state: event.target.value })}>
        <option value="">Connected and offline</option>
        <option value="connected">Connected</option>
        <option value="offline">Offline</option>
      </select>
      <select className="grow" aria-label="Policy" value={filter.policy} onChange={(event) => onChange({ policy: event.target.value })}>
        <option value="">Any policy</option>
        {MODES.map(([mode, name]) => (
          <option key={mode} value={mode}>
            {name}
          </option>
        ))}
      </select>
    </div>
  );
}
