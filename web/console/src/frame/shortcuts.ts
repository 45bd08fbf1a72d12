// Keyboard shortcuts: `g` and the key of a page, `/` for the search field, `?` and Ctrl-K for the
// palette.
import { useEffect } from "react";
import { useNavigate } from "react-router";
import { pages } from "../pages";
import { openPalette } from "./palette";

const SECOND_KEY_MS = 1_500;

const isTyping = (target: EventTarget | null) =>
  target instanceof HTMLElement && (target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName));

export function useShortcuts() {
  const navigate = useNavigate();
  useEffect(() => {
    let prefixAt = 0;
    const onKey = (event: KeyboardEvent) => {
      if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        return openPalette();
      }
      if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
      if (document.querySelector("[role=dialog]")) return;
      const isSecond = Date.now() - prefixAt < SECOND_KEY_MS;
      prefixAt = event.key === "g" && !isSecond ? Date.now() : 0;
      if (isSecond) {
        const page = pages.find(({ key }) => key === event.key);
        if (page) {
          event.preventDefault();
          void navigate(page.path);
        }
        return;
      }
      if (event.key === "/") {
        const search = document.querySelector<HTMLInputElement>("main input[type=search]");
        if (search) event.preventDefault();
        search?.focus();
      }
      if (event.key === "?") openPalette();
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, [navigate]);
}
