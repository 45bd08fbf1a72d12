import type { ComponentProps, ReactNode } from "react";
import { Link, type LinkProps } from "react-router";

type Look = "primary" | "plain" | "danger" | "quiet";

/** A button. While `isBusy` it does nothing. */
export function Button({ look = "plain", isBusy = false, children, ...rest }: ComponentProps<"button"> & { look?: Look; isBusy?: boolean }) {
  const { onClick, type = "button", ...others } = rest;
  return (
    <button
      {...others}
      type={type}
      className={`button ${look} ${rest.className ?? ""}`}
      aria-disabled={isBusy || undefined}
      onClick={(event) => (isBusy ? event.preventDefault() : onClick?.(event))}
    >
      {children}
    </button>
  );
}

export function LinkButton({ look = "plain", ...rest }: LinkProps & { look?: Look }) {
  return <Link {...rest} className={`button ${look} ${rest.className ?? ""}`} />;
}

/** A key of the keyboard in a text. */
export const Key = ({ children }: { children: ReactNode }) => <kbd className="key">{children}</kbd>;
