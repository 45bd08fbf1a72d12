// The command palette: go to a page, to a server, or run a line. Ctrl-K opens it.
import { useQuery } from "@tanstack/react-query";
import { useEffect, useId, useState } from "react";
import { useNavigate } from "react-router";
import { isStaff, me, servers } from "../api/queries";
import { OWN_LINE } from "../pages/run/targets";
import { Dialog } from "../ui/dialog";
import { offered } from "./offered";

interface Entry {
  readonly id: string;
  readonly text: string;
  readonly note?: string;
  readonly to: string;
}

const OPEN = "farhand:palette";
const MOST_SERVERS = 8;

export const openPalette = () => void window.dispatchEvent(new Event(OPEN));

export function Palette() {
  const [isOpen, setIsOpen] = useState(false);
  useEffect(() => {
    const open = () => setIsOpen(true);
    window.addEventListener(OPEN, open);
    return () => window.removeEventListener(OPEN, open);
  }, []);
  return (
    <Dialog title="Go to" isOpen={isOpen} onClose={() => setIsOpen(false)}>
      <Search onDone={() => setIsOpen(false)} />
    </Dialog>
  );
}

function Search({ onDone }: { onDone: () => void }) {
  const navigate = useNavigate();
  const list = useId();
  const [text, setText] = useState("");
  const [active, setActive] = useState(0);
  const entries = useEntries(text.trim());
  const chosen = Math.min(active, entries.length - 1);
  const go = (entry: Entry | undefined) => {
    if (!entry) return;
    onDone();
    void navigate(entry.to, { state: OWN_LINE });
  };
  const onKey = (event: React.KeyboardEvent) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step !== 0 && entries.length > 0) {
      event.preventDefault();
      setActive((chosen + step + entries.length) % entries.length);
    } else if (event.key === "Enter") {
      event.preventDefault();
      go(entries[chosen]);
    }
  };
  return (
    <div className="palette">
      <input
        type="text"
        role="combobox"
        aria-expanded="true"
        aria-controls={list}
        aria-activedescendant={entries[chosen] ? `${list}-${chosen}` : undefined}
        aria-label="A page, a server, or a line to run"
        placeholder="A page, a server, or a line to run"
        autoComplete="off"
        spellCheck={false}
        autoFocus
        value={text}
        onKeyDown={onKey}
        onChange={(event) => {
          setText(event.target.value);
          setActive(0);
        }}
      />
      <ul id={list} role="listbox" aria-label="Results">
        {entries.map((entry, index) => (
          <li
            key={entry.id}
            id={`${list}-${index}`}
            role="option"
            aria-selected={index === chosen}
            onMouseMove={() => setActive(index)}
            onClick={() => go(entry)}
          >
            <span>{entry.text}</span>
            {entry.note && <span className="muted">{entry.note}</span>}
          </li>
        ))}
      </ul>
      <p className="visually-hidden" role="status">
        {entries.length} results
      </p>
    </div>
  );
}

function useEntries(text: string): Entry[] {
  const staff = isStaff(useQuery(me()).data);
  const found = useQuery({ ...servers({ search: text, page_size: MOST_SERVERS, ordering: "name" }), enabled: text !== "" });
  const words = text.toLowerCase();
  const toPages = offered(staff)
    .filter(({ name }) => name.toLowerCase().includes(words))
    .map(({ path, name, key }) => ({ id: path, text: name, to: path, ...(key && { note: `g ${key}` }) }));
  const toServers =
    text === ""
      ? []
      : (found.data?.results ?? []).map(({ id, name, is_connected }) => ({
          id,
          text: name,
          note: is_connected ? "server, connected" : "server, offline",
          to: `/servers/${id}`,
        }));
  const run = text === "" ? [] : [{ id: "run", text: `Run: ${text}`, note: "choose servers", to: `/run?line=${encodeURIComponent(text)}` }];
  return [...toPages, ...toServers, ...run];
}
