// Signs the agent's files with Ed25519 (contract 17).
import { createPrivateKey, createPublicKey, sign } from "node:crypto";
import { readFileSync } from "node:fs";
import { fail } from "../lib.mjs";

/** Returns the private key in the file that FARHAND_RELEASE_KEY_FILE names, or null without it. */
export function releaseKey() {
  const file = process.env.FARHAND_RELEASE_KEY_FILE;
  if (!file) return null;
  let key;
  try {
    key = createPrivateKey(readFileSync(file));
  } catch (error) {
    fail(`FARHAND_RELEASE_KEY_FILE: ${error.message}`);
  }
  if (key.asymmetricKeyType !== "ed25519") fail(`FARHAND_RELEASE_KEY_FILE: the key is ${key.asymmetricKeyType}, not ed25519`);
  return key;
}

/** The 32 bytes of the public key of a private key, in base64. */
export const publicKey = (key) => Buffer.from(createPublicKey(key).export({ format: "jwk" }).x, "base64url").toString("base64");

/** Signs a text. Returns the 64 bytes in base64. */
export const signature = (key, text) => sign(null, Buffer.from(text), key).toString("base64");
