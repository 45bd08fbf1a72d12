import { useMutation } from "@tanstack/react-query";
import { useNavigate } from "react-router";
import { readAll, type PageQuery } from "../../api/all";
import { queryClient, servers, type Server } from "../../api/queries";
import { ActionError } from "../../ui/answers";
import { Button } from "../../ui/button";
import { number, plural } from "../../ui/words";
import { targetsInAddress, type RunState } from "../run/targets";
import { DeleteSelected } from "./delete-selected";
import { queryOf, type Filter } from "./query";
import type { Selected } from "./use-selection";

/** Maximum number of targets of a batch (contract 13.2). */
const MAX_TARGETS = 5_000;
const PAGE_SIZE = 1_000;

/** Reads all servers of a filter, up to the limit of a batch. */
async function all(filter: Filter): Promise<readonly Server[]> {
  const readPage = (page: PageQuery) => queryClient.fetchQuery(servers({ ...queryOf(filter), ordering: "name", ...page }));
  return (await readAll(readPage, { pageSize: PAGE_SIZE, most: MAX_TARGETS })).results;
}

/** What can be done with the selected servers. */
export function SelectionBar({ selection, filter, count }: { selection: Selected; filter: Filter; count: number }) {
  const navigate = useNavigate();
  const selectAll = useMutation({ mutationFn: () => all(filter), onSuccess: selection.set });
  const selected = selection.names.size;
  if (selected === 0) return null;
  const run = () => {
    const names = [...selection.names.values()];
    const state: RunState = { servers: names };
    void navigate(`/run${targetsInAddress(names)}`, { state });
  };
  return (
    <div className="selection-bar" role="region" aria-label="Selected servers">
      <strong>{number(selected)} selected</strong>
      <Button look="primary" onClick={run}>
        Run on {plural(selected, "server")}
      </Button>
      {selected < Math.min(count, MAX_TARGETS) && (
        <Button look="quiet" isBusy={selectAll.isPending} onClick={() => selectAll.mutate()}>
          Select all {number(Math.min(count, MAX_TARGETS))}
        </Button>
      )}
      <Button look="quiet" onClick={selection.clear}>
        Clear
      </Button>
      <DeleteSelected selection={selection} />
      <ActionError error={selectAll.error} />
    </div>
  );
}
