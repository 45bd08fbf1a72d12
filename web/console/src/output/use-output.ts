import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useMemo } from "react";
import type { Schema } from "../api/client";
import { command as commandQuery } from "../api/queries";
import { useStream } from "../live/use-stream";
import { Buffer } from "./buffer";

/**
 * The output of a command, live until the command ends. The end also updates the command's query,
 * and the lists that contain the command.
 */
export function useOutput(id: string | null) {
  const client = useQueryClient();
  // eslint-disable-next-line react-hooks/exhaustive-deps -- each command has a buffer of its own
  const buffer = useMemo(() => new Buffer(), [id]);
  const stream = useStream(id && `/api/events/commands/${id}/stream/`, ({ name, data }) => {
    if (name === "chunk") {
      buffer.append((JSON.parse(data) as Schema<"Chunk">).content);
    } else if (name === "end" && id) {
      const end = JSON.parse(data) as Schema<"CommandEnd">;
      // The end says whether the stream lacks output. A command says whether output was left out.
      const command = { ...end, output_truncated: end.output_skipped > 0 };
      // An agent that sends no chunks sends its output with the end.
      if (buffer.count === 0 && command.result) buffer.append(command.result);
      client.setQueryData(commandQuery(id).queryKey, command);
      void client.invalidateQueries({ queryKey: ["commands"] });
      return true;
    }
    return undefined;
  });
  // In development, effects run twice: the second stream begins with an empty buffer.
  useEffect(() => () => buffer.clear(), [buffer]);
  return { buffer, ...stream };
}
