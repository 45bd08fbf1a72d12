// Inputs for a username, with completion.
import { useQuery } from "@tanstack/react-query";
import { useId } from "react";
import { users } from "../api/queries";
import { useSettled } from "../live/use-settled";
import { useTyped } from "../live/use-typed";

interface UserInputProps {
  label: string;
  value: string;
  onChange: (username: string) => void;
  className?: string;
}

const SUGGESTIONS = 20;

/** A filter. It applies the name when typing pauses. */
export function UserInput({ value, onChange, ...rest }: UserInputProps) {
  const [text, setText] = useTyped(value, onChange);
  return <UserField {...rest} value={text} onChange={setText} />;
}

/** A field of a form. */
export function UserField({ label, value, onChange, className }: UserInputProps) {
  const list = useId();
  const search = useSettled(value.trim(), 150);
  const found = useQuery({ ...users({ search, page_size: SUGGESTIONS }), staleTime: 60_000 });
  return (
    <span className={className}>
      <input
        type="text"
        aria-label={label}
        placeholder={label}
        list={list}
        autoComplete="off"
        autoCapitalize="none"
        spellCheck={false}
        value={value}
        onChange={(event) => onChange(event.target.value)}
      />
      <datalist id={list}>
        {(found.data?.results ?? []).map(({ id, username }) => (
          <option key={id} value={username} />
        ))}
      </datalist>
    </span>
  );
}

/**
 * The id of a user, which the filters of lists take. Undefined while it is looked up, null if there
 * is no such user.
 */
export function useUserId(username: string): number | undefined | null {
  const { data } = useQuery({ ...users({ username, page_size: 1 }), enabled: username !== "" });
  return username === "" ? undefined : data && (data.results[0]?.id ?? null);
}
