// A list of servers, by their ids.
import { useQueries } from "@tanstack/react-query";
import { useState } from "react";
import { server as serverQuery } from "../api/queries";
import { Button } from "./button";
import { ServerPicker } from "./server-picker";
import { plural } from "./words";

interface ServerChipsProps {
  ids: readonly string[];
  onChange: (ids: readonly string[]) => void;
  isReadOnly?: boolean;
}

/** The number of servers that are shown at first, and the number that each click adds. */
const STEP = 50;

export function ServerChips({ ids, onChange, isReadOnly = false }: ServerChipsProps) {
  const [limit, setLimit] = useState(STEP);
  const shown = ids.slice(0, limit);
  const servers = useQueries({ queries: shown.map((id) => ({ ...serverQuery(id), staleTime: 60_000 })) });
  return (
    <div className="row-of">
      {shown.map((id, index) => {
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
      {ids.length > limit && (
        <Button look="quiet" onClick={() => setLimit(limit + STEP)}>
          and {plural(ids.length - limit, "more", "more")}
        </Button>
      )}
      {isReadOnly ? (
        ids.length === 0 && <span className="muted">none</span>
      ) : (
        <ServerPicker value="" onChange={(id) => !ids.includes(id) && onChange([...ids, id])} />
      )}
    </div>
  );
}
