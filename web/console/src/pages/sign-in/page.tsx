import { useMutation } from "@tanstack/react-query";
import { useEffect, useState, type FormEvent } from "react";
import { api, read } from "../../api/client";
import { asProblem, problemOf } from "../../api/problem";
import * as session from "../../api/session";
import { authorization } from "../../api/client";
import { ActionError } from "../../ui/answers";
import { Button } from "../../ui/button";
import { TextField } from "../../ui/field";
import icon from "../../icon.svg";
import "./page.css";

type Way = "password" | "token" | "forgotten";

const HEADINGS: Record<Way, string> = { password: "Sign in", token: "Sign in with an API token", forgotten: "Forgotten password" };

/**
 * Shown at every address while nobody is signed in. The address stays, so the user continues there.
 */
export default function SignIn() {
  const { hasEnded } = session.useSession();
  const [way, setWay] = useState<Way>("password");
  useEffect(() => {
    document.title = "Sign in · Farhand";
  }, []);
  return (
    <main className="sign-in">
      <p className="brand">
        <img src={icon} alt="" width="28" height="28" />
        Farhand
      </p>
      <h1>{HEADINGS[way]}</h1>
      <p className="muted">{location.host}</p>
      {hasEnded && <p role="status">Your session has ended. Sign in to continue on this page.</p>}
      {way === "password" && <WithPassword onTokensOnly={() => setWay("token")} />}
      {way === "token" && <WithToken />}
      {way === "forgotten" && <Forgotten />}
      <div className="row-of">
        {way !== "password" && (
          <Button look="quiet" onClick={() => setWay("password")}>
            Use a password
          </Button>
        )}
        {way !== "token" && (
          <Button look="quiet" onClick={() => setWay("token")}>
            Use an API token
          </Button>
        )}
        {way !== "forgotten" && (
          <Button look="quiet" onClick={() => setWay("forgotten")}>
            Forgotten password
          </Button>
        )}
      </div>
    </main>
  );
}

function WithPassword({ onTokensOnly }: { onTokensOnly: () => void }) {
  const [username, setUsername] = useState("");
  const [password, setPassword] = useState("");
  const login = useMutation({
    mutationFn: () => read(api.POST("/api/auth/login/", { body: { username, password } })),
    onSuccess: ({ token }) => session.begin({ token, kind: "login" }),
    // In a cloud deployment there are no passwords (contract 4.15).
    onError: (error) => asProblem(error).status === 404 && onTokensOnly(),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    login.mutate();
  };
  return (
    <form className="form" onSubmit={submit}>
      <TextField
        label="Username"
        autoComplete="username"
        autoCapitalize="none"
        autoFocus
        required
        value={username}
        onChange={(event) => setUsername(event.target.value)}
      />
      <TextField
        label="Password"
        type="password"
        autoComplete="current-password"
        required
        value={password}
        onChange={(event) => setPassword(event.target.value)}
      />
      <ActionError error={login.error} />
      <Button look="primary" type="submit" isBusy={login.isPending}>
        Sign in
      </Button>
    </form>
  );
}

function WithToken() {
  const [token, setToken] = useState("");
  const check = useMutation({
    // Not through the client, which would treat the refusal of this token as the end of a session.
    mutationFn: async () => {
      const response = await fetch("/api/status/", { headers: { Authorization: authorization(token.trim()) } });
      if (!response.ok) throw problemOf(response.status, await response.json().catch(() => null), null);
    },
    onSuccess: () => session.begin({ token: token.trim(), kind: "token" }),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    check.mutate();
  };
  return (
    <form className="form" onSubmit={submit}>
      <TextField
        label="API token"
        type="password"
        autoComplete="off"
        autoFocus
        required
        value={token}
        onChange={(event) => setToken(event.target.value)}
        hint="This tab keeps the token until you sign out or close it."
      />
      <ActionError error={check.error} />
      <Button look="primary" type="submit" isBusy={check.isPending}>
        Sign in
      </Button>
    </form>
  );
}

function Forgotten() {
  const [email, setEmail] = useState("");
  const request = useMutation({ mutationFn: () => read(api.POST("/api/auth/reset-password/", { body: { email } })) });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    request.mutate();
  };
  // The service does not say whether the address is registered.
  if (request.isSuccess) return <p role="status">If {email} belongs to a user, a mail with a link is on its way. The link works for 24 hours.</p>;
  const refusal = request.error && asProblem(request.error);
  return (
    <form className="form" onSubmit={submit}>
      <TextField label="E-mail address" type="email" autoComplete="email" autoFocus required value={email} onChange={(event) => setEmail(event.target.value)} />
      {refusal && (
        <p className="error" role="alert">
          {refusal.isOffline ? refusal.message : "There are too many requests for this address. Use the link of an earlier mail, or try again tomorrow."}
        </p>
      )}
      <Button look="primary" type="submit" isBusy={request.isPending}>
        Send a link
      </Button>
    </form>
  );
}
