import { useCallback } from "react";
import { useSearchParams } from "react-router";

/**
 * The state of a list in the address bar, so that it can be pasted to a colleague. `defaults` has
 * all parameters with their defaults, and is a constant of its page. A parameter with its default is not in the
 * address.
 */
export function useAddress<State extends Record<string, string>>(defaults: State): [State, (changes: Partial<State>) => void] {
  const [parameters, setParameters] = useSearchParams();
  const state = Object.fromEntries(Object.entries(defaults).map(([name, value]) => [name, parameters.get(name) ?? value])) as State;
  const change = useCallback(
    (changes: Partial<State>) => {
      // The router's own state is older while a change of another filter is being rendered.
      const after = new URLSearchParams(location.search);
      for (const [name, value] of Object.entries<string | undefined>(changes)) {
        if (value === undefined || value === defaults[name]) after.delete(name);
        else after.set(name, value);
      }
      setParameters(after, { replace: true });
    },
    [defaults, setParameters],
  );
  return [state, change];
}
