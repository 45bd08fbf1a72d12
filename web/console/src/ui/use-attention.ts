import { useEffect, useRef } from "react";

/**
 * Brings an element into view and focuses it when it appears, and again when `of` changes: what a
 * click opened may be above the visible part of a long list. The element needs `tabIndex={-1}`.
 */
export function useAttention<Target extends HTMLElement>(of: unknown) {
  const element = useRef<Target>(null);
  useEffect(() => {
    element.current?.scrollIntoView({ block: "nearest" });
    element.current?.focus({ preventScroll: true });
  }, [of]);
  return element;
}
