// The dark and the light theme. If the user chose neither, the system decides.
import { useState } from "react";

export type Theme = "system" | "light" | "dark";

const KEY = "farhand.theme";

function chosen(): Theme {
  const value = localStorage.getItem(KEY);
  return value === "light" || value === "dark" ? value : "system";
}

/** Sets the attribute that the style sheet reads. */
export function applyTheme(theme: Theme = chosen()) {
  if (theme === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
}

export function useTheme(): [Theme, (theme: Theme) => void] {
  const [theme, setTheme] = useState(chosen);
  const change = (next: Theme) => {
    if (next === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, next);
    applyTheme(next);
    setTheme(next);
  };
  return [theme, change];
}
