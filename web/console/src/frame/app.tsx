import { useQuery } from "@tanstack/react-query";
import { Suspense, useEffect, useRef } from "react";
import { NavigationType, Route, Routes, useLocation, useNavigationType } from "react-router";
import { me, queryClient } from "../api/queries";
import { useSession } from "../api/session";
import { pages } from "../pages";
import SignIn from "../pages/sign-in/page";
import { Empty, Loading } from "../ui/answers";
import { LinkButton } from "../ui/button";
import { Page } from "../ui/page";
import { Toasts } from "../ui/toasts";
import { Boundary } from "./boundary";
import { ConnectionNote } from "./connection-note";
import { Palette } from "./palette";
import { Rail } from "./rail";
import { useShortcuts } from "./shortcuts";

/**
 * The whole console. Without a session every address shows the sign-in page, so that the address
 * stays, and the user is back on the same page after signing in.
 */
export function App() {
  const { session } = useSession();
  useEffect(() => {
    // Another user must not see what was read for this one.
    if (!session) queryClient.clear();
  }, [session]);
  return session ? <SignedIn key={session.token} /> : <SignIn />;
}

function SignedIn() {
  // Read first: an ended session leads to the sign-in page before a page shows its own errors.
  useQuery(me());
  useShortcuts();
  const { pathname } = useLocation();
  useOpened(pathname);
  return (
    <div className="frame">
      <a className="skip" href="#main">
        Skip to the page
      </a>
      <Rail />
      <main id="main" tabIndex={-1}>
        <ConnectionNote />
        <Boundary key={pathname}>
          <Suspense fallback={<Loading />}>
            <Routes>
              {pages.map(({ path, component: Component }) => (
                <Route key={path} path={path} element={<Component />} />
              ))}
              <Route path="*" element={<Nowhere />} />
            </Routes>
          </Suspense>
        </Boundary>
      </main>
      <Palette />
      <Toasts />
    </div>
  );
}

/** A page that was opened begins at its top, with the focus before its first element. */
function useOpened(pathname: string) {
  const way = useNavigationType();
  const shown = useRef(pathname);
  useEffect(() => {
    if (shown.current === pathname) return;
    shown.current = pathname;
    // Going back is left to the browser, which knows where the page was.
    if (way !== NavigationType.Pop) window.scrollTo(0, 0);
    const main = document.getElementById("main");
    // A field of the new page may have the focus already.
    if (!main?.contains(document.activeElement)) main?.focus({ preventScroll: true });
  }, [pathname, way]);
}

const Nowhere = () => (
  <Page title="Not found">
    <Empty title="There is no page at this address">
      <LinkButton to="/">Go to the overview</LinkButton>
    </Empty>
  </Page>
);
