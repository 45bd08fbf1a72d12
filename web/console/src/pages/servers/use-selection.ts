import { useRef, useState } from "react";
import type { Server } from "../../api/queries";
import type { Selection } from "../../ui/table";

export interface Selected extends Selection {
  /** The selected servers: names by id. */
  readonly names: ReadonlyMap<string, string>;
  readonly set: (servers: readonly Pick<Server, "id" | "name">[]) => void;
  readonly clear: () => void;
}

/** The selected servers of a list. With Shift, all rows since the last click are selected. */
export function useSelection(at: (index: number) => Server | undefined): Selected {
  const [names, setNames] = useState<ReadonlyMap<string, string>>(new Map());
  const last = useRef<number | null>(null);
  const toggle = (key: string, index: number, isRange: boolean) => {
    const next = new Map(names);
    const from = isRange && last.current !== null ? last.current : index;
    const isOn = !names.has(key);
    for (let each = Math.min(from, index); each <= Math.max(from, index); each += 1) {
      const server = at(each);
      if (server && isOn) next.set(server.id, server.name);
      else if (server) next.delete(server.id);
    }
    last.current = index;
    setNames(next);
  };
  return {
    names,
    has: (key) => names.has(key),
    toggle,
    set: (servers) => setNames(new Map(servers.map(({ id, name }) => [id, name]))),
    clear: () => setNames(new Map()),
  };
}
