// A table that renders only the visible rows, with the whole page as its scroll area. On a narrow
// screen each row is a card.
import { useWindowVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useLayoutEffect, useRef, useState, type CSSProperties, type ReactNode } from "react";

export interface Column<Row> {
  readonly name: string;
  readonly title: string;
  /** A track of a CSS grid: `120px`, `minmax(0, 2fr)`. */
  readonly width: string;
  readonly cell: (row: Row) => ReactNode;
  /** The field for `ordering`, if the service can sort by the column. */
  readonly orderBy?: string;
  /**
   * Where the cell is in a card: its title, the end of that line, a line of its own, with others in
   * its body, there with the title of its column, or nowhere.
   */
  readonly card?: "title" | "end" | "line" | "body" | "labelled" | "none";
}

export interface Selection {
  readonly has: (key: string) => boolean;
  readonly toggle: (key: string, index: number, isRange: boolean) => void;
}

interface TableProps<Row> {
  /** Names the table for screen readers. */
  label: string;
  columns: readonly Column<Row>[];
  count: number;
  at: (index: number) => Row | undefined;
  keyOf: (row: Row) => string;
  nameOf?: (row: Row) => string;
  onRange?: (first: number, last: number) => void;
  selection?: Selection;
  ordering?: string;
  onOrdering?: (ordering: string) => void;
  /** A row whose mark changes lights up once. */
  markOf?: (row: Row) => string;
}

/** The estimated heights before a row is measured, in pixels. */
const ROW_HEIGHT = 32;
const CARD_HEIGHT = 60;

export function Table<Row>({ label, columns, count, at, keyOf, nameOf, onRange, selection, ordering, onOrdering, markOf }: TableProps<Row>) {
  const body = useRef<HTMLDivElement>(null);
  const [offset, setOffset] = useState(0);
  const isNarrow = useIsNarrow();
  useLayoutEffect(() => {
    if (body.current) setOffset(body.current.getBoundingClientRect().top + window.scrollY);
  }, [isNarrow]);
  const virtualizer = useWindowVirtualizer({
    count,
    estimateSize: () => (isNarrow ? CARD_HEIGHT : ROW_HEIGHT),
    overscan: 8,
    scrollMargin: offset,
    useFlushSync: false,
  });
  const items = virtualizer.getVirtualItems();
  const [first, last] = [items[0]?.index ?? 0, items.at(-1)?.index ?? 0];
  useEffect(() => onRange?.(first, last), [onRange, first, last]);
  useEffect(() => virtualizer.measure(), [isNarrow, virtualizer]);

  const template = [selection ? "28px" : null, ...columns.map(({ width }) => width)].filter(Boolean).join(" ");
  const style = { "--columns": template } as CSSProperties;
  return (
    <div className="table" role="table" aria-label={label} aria-rowcount={count + 1} style={style}>
      <div role="rowgroup" className="table-head">
        <div role="row" className="row head" aria-rowindex={1}>
          {selection && (
            <span role="columnheader" className="cell">
              <span className="visually-hidden">Selected</span>
            </span>
          )}
          {columns.map((column) => (
            <Head key={column.name} column={column} ordering={ordering} onOrdering={onOrdering} />
          ))}
        </div>
      </div>
      <div role="rowgroup" ref={body} className="table-body" style={{ height: virtualizer.getTotalSize() }}>
        {items.map(({ index, start, key }) => {
          const row = at(index);
          return (
            <div
              key={row ? keyOf(row) : key}
              ref={virtualizer.measureElement}
              data-index={index}
              role="row"
              aria-rowindex={index + 2}
              className={`row ${row && selection?.has(keyOf(row)) ? "selected" : ""}`}
              style={{ transform: `translateY(${start - offset}px)` }}
            >
              {row ? (
                <Cells row={row} index={index} columns={columns} selection={selection} keyOf={keyOf} nameOf={nameOf} mark={markOf?.(row)} />
              ) : (
                <span role="cell" className="cell muted">
                  …
                </span>
              )}
            </div>
          );
        })}
      </div>
    </div>
  );
}

interface CellsProps<Row> extends Pick<TableProps<Row>, "columns" | "selection" | "keyOf" | "nameOf"> {
  row: Row;
  index: number;
  mark: string | undefined;
}

function Cells<Row>({ row, index, columns, selection, keyOf, nameOf, mark }: CellsProps<Row>) {
  const before = useRef(mark);
  const [lit, setLit] = useState(0);
  useEffect(() => {
    if (before.current !== mark) setLit((count) => count + 1);
    before.current = mark;
  }, [mark]);
  const key = keyOf(row);
  return (
    <>
      {selection && (
        <span role="cell" className="cell select">
          <input
            type="checkbox"
            aria-label={`Select ${nameOf?.(row) ?? key}`}
            checked={selection.has(key)}
            onChange={() => undefined}
            onClick={(event) => selection.toggle(key, index, event.shiftKey)}
          />
        </span>
      )}
      {columns.map(({ name, title, cell, card = "body" }) => (
        <span role="cell" key={name} className={`cell card-${card}`} data-title={title}>
          {cell(row)}
        </span>
      ))}
      {lit > 0 && <span key={lit} className="lit" aria-hidden="true" />}
    </>
  );
}

function Head<Row>({ column, ordering, onOrdering }: { column: Column<Row>; ordering?: string; onOrdering?: (ordering: string) => void }) {
  const { title, orderBy } = column;
  if (!orderBy || !onOrdering) {
    return (
      <span role="columnheader" className="cell">
        {title}
      </span>
    );
  }
  const direction = ordering === orderBy ? "ascending" : ordering === `-${orderBy}` ? "descending" : undefined;
  return (
    <span role="columnheader" className="cell" aria-sort={direction ?? "none"}>
      <button type="button" className="sort" onClick={() => onOrdering(direction === "ascending" ? `-${orderBy}` : orderBy)}>
        {title}
        <span aria-hidden="true">{direction === "ascending" ? " ↑" : direction === "descending" ? " ↓" : ""}</span>
      </button>
    </span>
  );
}

const NARROW = "(max-width: 700px)";

/** Whether the screen is as narrow as a phone's. */
export function useIsNarrow() {
  const [isNarrow, setIsNarrow] = useState(() => matchMedia(NARROW).matches);
  useEffect(() => {
    const query = matchMedia(NARROW);
    const update = () => setIsNarrow(query.matches);
    query.addEventListener("change", update);
    return () => query.removeEventListener("change", update);
  }, []);
  return isNarrow;
}
