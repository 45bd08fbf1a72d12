import { useQuery } from "@tanstack/react-query";
import { useId } from "react";
import { NavLink } from "react-router";
import { isStaff, me } from "../api/queries";
import { useSession } from "../api/session";
import type { PageRow } from "../pages";
import { number } from "../ui/words";
import { useCounts } from "./counts";
import { offered } from "./offered";
import { openPalette } from "./palette";
import { signOut, signOutEverywhere } from "./sign-out";
import { useTheme, type Theme } from "./theme";

const MENU = "account-menu";
const THEMES: readonly (readonly [Theme, string])[] = [
  ["system", "Like the system"],
  ["light", "Light"],
  ["dark", "Dark"],
];

/** The workspace's name: the first label of the host name. An IP address contains no workspace. */
const workspace = () => (/^[\d.:[\]]+$|^localhost$/.test(location.hostname) ? "Farhand" : location.hostname.split(".")[0]);

/** The navigation: a rail at the left, on a phone a bar at the bottom. */
export function Rail() {
  const counts = useCounts();
  const staff = isStaff(useQuery(me()).data);
  const link = ({ path, name, count, isInBar }: PageRow) => (
    <li key={path} className={isInBar ? undefined : "wide-only"}>
      <NavLink to={path} end={path === "/"} className="rail-link">
        <span>{name}</span>
        {count && counts[count] !== undefined && counts[count] > 0 && <span className="rail-count">{number(counts[count])}</span>}
      </NavLink>
    </li>
  );
  return (
    <nav className="rail" aria-label="Pages">
      <p className="rail-name">{workspace()}</p>
      <button type="button" className="rail-search" onClick={openPalette}>
        <span>Go to…</span>
        <kbd className="key">Ctrl K</kbd>
      </button>
      <ul>{offered(staff, "work").map(link)}</ul>
      <ul className="rail-manage">{offered(staff, "manage").map(link)}</ul>
      <div className="rail-end">
        <UserMenu others={offered(staff).filter(({ isInBar }) => !isInBar)} />
      </div>
    </nav>
  );
}

const closeMenu = () => document.getElementById(MENU)?.hidePopover();

/**
 * Theme, documents and sign-out, in a popover of the browser. On a phone also the pages that its
 * bar has no room for.
 */
function UserMenu({ others }: { others: readonly PageRow[] }) {
  const user = useQuery(me()).data;
  const { session } = useSession();
  const [theme, setTheme] = useTheme();
  const themes = useId();
  return (
    <>
      <button type="button" className="rail-user" popoverTarget={MENU}>
        <span className="wide-only ellipsis">{user?.username ?? "Account"}</span>
        <span className="narrow-only">More</span>
        <span aria-hidden="true">⌄</span>
      </button>
      <div id={MENU} popover="auto" className="menu">
        <p className="menu-item muted narrow-only">{user?.username}</p>
        <div className="menu-pages narrow-only">
          <button type="button" className="menu-item" onClick={() => (closeMenu(), openPalette())}>
            Go to…
          </button>
          {others.map(({ path, name }) => (
            <NavLink key={path} to={path} className="menu-item" onClick={closeMenu}>
              {name}
            </NavLink>
          ))}
        </div>
        <fieldset className="menu-themes">
          <legend className="visually-hidden">Colours</legend>
          {THEMES.map(([value, name]) => (
            <label key={value} className="menu-item">
              <input type="radio" name={themes} checked={theme === value} onChange={() => setTheme(value)} />
              {name}
            </label>
          ))}
        </fieldset>
        <a className="menu-item" href="/api/docs/">
          API reference
        </a>
        <button type="button" className="menu-item" onClick={() => void signOut()}>
          Sign out
        </button>
        {session?.kind === "login" && (
          <button type="button" className="menu-item" onClick={() => void signOutEverywhere()}>
            Sign out everywhere
          </button>
        )}
      </div>
    </>
  );
}
