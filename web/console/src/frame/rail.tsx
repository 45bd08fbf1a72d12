import { useQuery } from "@tanstack/react-query";
import { Menu } from "@base-ui/react/menu";
import { NavLink } from "react-router";
import { isStaff, me } from "../api/queries";
import { useSession } from "../api/session";
import { pages, type PageRow } from "../pages";
import { number } from "../ui/words";
import { useCounts } from "./counts";
import { openPalette } from "./palette";
import { signOut, signOutEverywhere } from "./sign-out";
import { useTheme, type Theme } from "./theme";

const THEMES: readonly (readonly [Theme, string])[] = [["system", "Like the system"], ["light", "Light"], ["dark", "Dark"]];

/** The workspace's name is the first label of its host name. */
const workspace = () => (/^[\d.:[\]]+$/.test(location.hostname) ? location.hostname : location.hostname.split(".")[0]);

/** The pages that the user may use, of one part of the rail. */
export const offered = (staff: boolean, rail?: PageRow["rail"]) =>
  pages.filter((page) => page.rail !== undefined && (rail === undefined || page.rail === rail) && (staff || !page.isForStaff));

/** The navigation: a rail at the left, on a phone a bar at the bottom. */
export function Rail() {
  const counts = useCounts();
  const staff = isStaff(useQuery(me()).data);
  const link = ({ path, name, count }: PageRow) => (
    <li key={path}>
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
        <UserMenu />
      </div>
    </nav>
  );
}

function UserMenu() {
  const user = useQuery(me()).data;
  const { session } = useSession();
  const [theme, setTheme] = useTheme();
  return (
    <Menu.Root modal={false}>
      <Menu.Trigger className="rail-user">
        <span>{user?.username ?? "Account"}</span>
        <span aria-hidden="true">⌄</span>
      </Menu.Trigger>
      <Menu.Portal>
        <Menu.Positioner className="menu-positioner" sideOffset={4} align="start">
          <Menu.Popup className="menu">
            <Menu.RadioGroup value={theme} onValueChange={setTheme}>
              {THEMES.map(([value, name]) => (
                <Menu.RadioItem key={value} value={value} className="menu-item">
                  <span className="menu-check" aria-hidden="true">
                    {theme === value ? "✓" : ""}
                  </span>
                  {name}
                </Menu.RadioItem>
              ))}
            </Menu.RadioGroup>
            <Menu.Separator className="menu-line" />
            <Menu.Item className="menu-item" render={<a href="/api/docs/">API reference</a>} />
            <Menu.Separator className="menu-line" />
            <Menu.Item className="menu-item" onClick={() => void signOut()}>
              Sign out
            </Menu.Item>
            {session?.kind === "login" && (
              <Menu.Item className="menu-item" onClick={() => void signOutEverywhere()}>
                Sign out everywhere
              </Menu.Item>
            )}
          </Menu.Popup>
        </Menu.Positioner>
      </Menu.Portal>
    </Menu.Root>
  );
}
