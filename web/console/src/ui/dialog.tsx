import { Dialog as Base } from "@base-ui/react/dialog";
import { useState, type ReactNode } from "react";
import { ActionError } from "./answers";
import { Button } from "./button";

interface DialogProps {
  title: string;
  isOpen: boolean;
  onClose: () => void;
  children: ReactNode;
}

/** A dialog over the page. Focus stays in it, Escape closes it. */
export function Dialog({ title, isOpen, onClose, children }: DialogProps) {
  return (
    <Base.Root open={isOpen} onOpenChange={(open) => !open && onClose()}>
      <Base.Portal>
        <Base.Backdrop className="backdrop" />
        <Base.Popup className="dialog">
          <Base.Title className="dialog-title">{title}</Base.Title>
          {children}
        </Base.Popup>
      </Base.Portal>
    </Base.Root>
  );
}

interface ConfirmProps extends Omit<DialogProps, "children"> {
  /** Names the object and the consequence. */
  children: ReactNode;
  /** The verb on the button. */
  verb: string;
  /** A text that the user must type first. */
  typed?: string;
  action: () => Promise<unknown>;
}

/** Asks before a destructive action. Stays open and says why if the action fails. */
export function Confirm({ title, isOpen, onClose, children, verb, typed, action }: ConfirmProps) {
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setIsBusy] = useState(false);
  const [entered, setEntered] = useState("");
  const close = () => {
    setError(null);
    setEntered("");
    onClose();
  };
  const confirm = async () => {
    setIsBusy(true);
    try {
      await action();
      close();
    } catch (cause) {
      setError(cause);
    } finally {
      setIsBusy(false);
    }
  };
  return (
    <Dialog title={title} isOpen={isOpen} onClose={close}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (typed === undefined || entered === typed) void confirm();
        }}
      >
        {children}
        {typed !== undefined && (
          <label className="field">
            <span>
              Type <strong>{typed}</strong> to confirm
            </span>
            <input value={entered} onChange={(event) => setEntered(event.target.value)} autoComplete="off" spellCheck={false} />
          </label>
        )}
        <ActionError error={error} />
        <div className="dialog-actions">
          <Button onClick={close}>Back</Button>
          <Button look="danger" type="submit" isBusy={isBusy} disabled={typed !== undefined && entered !== typed}>
            {verb}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
