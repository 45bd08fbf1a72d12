// An SMTP server for tests, on a free port of 127.0.0.1. It prints one JSON object per event, each
// on a line:
//
//   {"event": "listening", "port"}
//   {"event": "connection"}              a client connected; with --tls, after the handshake
//   {"event": "command", "verb"}         the client sent a command
//   {"event": "recipient", "to", "answer"}
//   {"event": "mail", "from", "to", "secure", "user", "mime", "answer"}
//   {"event": "closed"}                  a connection ended
//
// Options:
//
//   --certificate FILE, --key FILE
//   --tls                           TLS from the first byte; the default is to offer STARTTLS
//   --auth METHOD                   may be repeated; the default is PLAIN and LOGIN
//   --user NAME, --password WORD    without them, clients need not authenticate
//
// Options for misbehaviour:
//
//   --silent N                      the first N connections get no response
//   --clear N                       the next N connections are offered no STARTTLS
//   --refuse ADDRESS                550 to this recipient
//   --later ADDRESS                 451 to the first mail for this recipient
//   --cut ADDRESS                   the connection breaks within the first mail for this recipient
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { SMTPServer } from "smtp-server";

const text = /** @type {const} */ ({ type: "string", multiple: false });
/** @type {{type: "string", multiple: true, default: string[]}} */
const several = { type: "string", multiple: true, default: [] };
const count = /** @type {const} */ ({ type: "string", default: "0", multiple: false });
const { values } = parseArgs({
  options: {
    certificate: text, key: text, tls: { type: "boolean", default: false }, auth: several, user: text, password: text,
    silent: count, clear: count, refuse: several, later: several, cut: several,
  },
});

const say = (event, facts = {}) => process.stdout.write(`${JSON.stringify({ event, ...facts })}\n`);
const refusal = (responseCode, message) => Object.assign(new Error(message), { responseCode });

/**
 * True if the list contains an item. Removes it, so the next call for the same item returns false.
 */
const isFirst = (list, item) => {
  const index = list.indexOf(item);
  if (index >= 0) list.splice(index, 1);
  return index >= 0;
};

let connections = 0;
const quiet = () => {};
const server = new SMTPServer({
  secure: values.tls,
  cert: readFileSync(values.certificate),
  key: readFileSync(values.key),
  authMethods: values.auth.length > 0 ? values.auth : ["PLAIN", "LOGIN"],
  authOptional: values.user === undefined,
  // Accepts passwords without encryption, so that tests notice a client that sends them.
  allowInsecureAuth: true,
  disableReverseLookup: true,
  logger: { debug: (entry) => entry.tnx === "command" && say("command", { verb: entry.command }), info: quiet, warn: quiet, error: quiet },
  onConnect(session, go) {
    connections += 1;
    say("connection");
    const [silent, clear] = [Number(values.silent), Number(values.clear)];
    if (connections > silent && connections <= silent + clear) session.disabledCommands = ["STARTTLS"];
    if (connections > silent) go();
  },
  onAuth({ username, password }, _session, answer) {
    const isRight = username === values.user && password === values.password;
    answer(isRight ? null : refusal(535, "wrong username or password"), { user: username });
  },
  onRcptTo({ address }, _session, answer) {
    const isRefused = values.refuse.includes(address);
    say("recipient", { to: address, answer: isRefused ? 550 : 250 });
    answer(isRefused ? refusal(550, "nobody of that name") : null);
  },
  onData(stream, session, answer) {
    const { mailFrom, rcptTo } = session.envelope;
    const to = rcptTo.map(({ address }) => address);
    const facts = { from: mailFrom && mailFrom.address, to, secure: session.secure, user: session.user ?? null };
    const pieces = [];
    const cut = isFirst(values.cut, to[0]);
    stream.on("data", (piece) => {
      if (cut && pieces.length > 0) return;
      pieces.push(piece);
      if (!cut) return;
      say("mail", { ...facts, mime: Buffer.concat(pieces).toString(), answer: null });
      for (const connection of server.connections) if (connection.session === session) connection._socket.destroy();
    });
    stream.on("end", () => {
      if (cut) return;
      const isLater = isFirst(values.later, to[0]);
      say("mail", { ...facts, mime: Buffer.concat(pieces).toString(), answer: isLater ? 451 : 250 });
      answer(isLater ? refusal(451, "come again") : null);
    });
  },
  onClose: () => say("closed"),
});
// A client that does not trust the certificate causes an error here. The client itself reports it.
server.on("error", quiet);
server.listen(0, "127.0.0.1", () => {
  const { port } = /** @type {import("node:net").AddressInfo} */ (server.server.address());
  say("listening", { port });
});
