import { useEffect, useEffectEvent, useState } from "react";
import { useSettled } from "./use-settled";

/**
 * The text of an input, which is passed to `onSettled` when typing pauses. Takes over `value` when
 * that changes elsewhere.
 */
export function useTyped(value: string, onSettled: (value: string) => void): [string, (value: string) => void] {
  const [typed, setTyped] = useState(value);
  const [known, setKnown] = useState(value);
  const settled = useSettled(typed);
  if (value !== known) {
    setKnown(value);
    if (value !== settled) setTyped(value);
  }
  const onPause = useEffectEvent((text: string) => {
    if (text !== value && text === typed) onSettled(text);
  });
  useEffect(() => onPause(settled), [settled]);
  return [typed, setTyped];
}
