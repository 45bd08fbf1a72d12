// Whether the last request got an answer. The frame shows a lost connection.
import { useSyncExternalStore } from "react";

const listeners = new Set<() => void>();
let isConnected = true;

export function reportConnection(answered: boolean) {
  if (answered === isConnected) return;
  isConnected = answered;
  listeners.forEach((listener) => listener());
}

function subscribe(listener: () => void) {
  listeners.add(listener);
  return () => void listeners.delete(listener);
}

export const useConnection = () => useSyncExternalStore(subscribe, () => isConnected);
