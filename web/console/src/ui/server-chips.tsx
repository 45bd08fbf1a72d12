// A list of servers, by their ids.
import { useQueries } from "@tanstack/react-query";
import { server as serverQuery } from "../api/queries";
import { ServerPicker } from "./server-picker";

interface ServerChipsProps {
  ids: readonly string[];
  onChange: (ids: readonly string[]) => void;
  isReadOnly?: boolean;
}

export function ServerChips({ ids, onChange, isReadOnly = false }: ServerChipsProps) {
  const servers = useQueries({ queries: ids.map((id) => ({ ...serverQuery(id), staleTime: 60_000 })) });
  return (
    <div className="row-of">
      {ids.map((id, index) => {
        const name = servers[index]?.data?.name ?? (servers[index]?.error ? "unknown server" : "…");
        return (
          <span key={id} className="chip">
            {name}
            {!isReadOnly && (
              <button type="button" className="chip-remove" aria-label={`Remove ${name}`} onClick={() => onChange(ids.filter((one) => one !== id))}>
                ×
              </button>
            )}
          </span>
        );
      })}
      {isReadOnly ? ids.length === 0 && <span className="muted">none</span> : <ServerPicker value="" onChange={(id) => !ids.includes(id) && onChange([...ids, id])} />}
    </div>
  );
}
