import { Component, type ReactNode } from "react";
import { Button } from "../ui/button";

/** Shows a note instead of a page that failed to load or to render. The rail stays. */
export class Boundary extends Component<{ children: ReactNode }, { error: Error | null }> {
  override state: { error: Error | null } = { error: null };

  static getDerivedStateFromError(error: Error) {
    return { error };
  }

  override render() {
    const { error } = this.state;
    if (!error) return this.props.children;
    // After an upgrade of the service, the files of an open page no longer exist.
    const isOutdated = error.message.includes("dynamically imported module");
    return (
      <div className="empty failure" role="alert">
        <h1>{isOutdated ? "There is a new version of the console" : "This page failed"}</h1>
        <p>{isOutdated ? "Load the page again to use it." : error.message}</p>
        <Button look="primary" onClick={() => location.reload()}>
          Load again
        </Button>
      </div>
    );
  }
}
