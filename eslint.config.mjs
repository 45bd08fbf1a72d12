// ESLint for the scripts in web/. `npm test -- lint` fails on any finding.
import js from "@eslint/js";
import { createNodeResolver, importX } from "eslint-plugin-import-x";
import reactHooks from "eslint-plugin-react-hooks";
import { defineConfig } from "eslint/config";
import tseslint from "typescript-eslint";

/** A list that is read to choose from, or to look up names, must be read whole. */
const WHOLE_LISTS = {
  selector: "Property[key.name='page_size'] > Literal[value>=100]",
  message: "The items beyond would be missing without a sign. Read the whole list with readAll or useAll.",
};

export default defineConfig(
  { linterOptions: { reportUnusedDisableDirectives: "error" } },
  {
    files: ["web/**/*.{ts,tsx,js,mjs}"],
    extends: [js.configs.recommended],
    plugins: { "import-x": importX },
    settings: {
      "import-x/parsers": { "@typescript-eslint/parser": [".ts", ".tsx"] },
      "import-x/resolver-next": [createNodeResolver({ extensions: [".ts", ".tsx", ".mjs", ".js"] })],
    },
    rules: {
      "import-x/no-cycle": "error",
      "import-x/no-unresolved": ["error", { ignore: ["^#schema$"] }],
      // Patterns of hostile text name control characters and joiners.
      "no-control-regex": "off",
      "no-misleading-character-class": "off",
      eqeqeq: "error",
    },
  },
  {
    // The compiler checks names, also in the scripts of tests.
    files: ["web/console/**/*.{ts,tsx,mjs}"],
    rules: { "no-undef": "off" },
  },
  {
    files: ["web/docs/*.js", "web/reset-password/*.js"],
    languageOptions: { globals: { AbortSignal: "readonly", document: "readonly", history: "readonly", matchMedia: "readonly", location: "readonly", fetch: "readonly", window: "readonly", URLSearchParams: "readonly", SwaggerUIBundle: "readonly" } },
  },
  {
    files: ["web/console/src/**/*.{ts,tsx}"],
    extends: [tseslint.configs.recommendedTypeChecked],
    // The cast is needed because its types put objects of configurations into `configs.flat`, which ESLint's type does not allow.
    plugins: { "react-hooks": /** @type {any} */ (reactHooks) },
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    rules: {
      // The other rules of the plug-in are for React's compiler, which does not build the console.
      "react-hooks/rules-of-hooks": "error",
      "react-hooks/exhaustive-deps": "error",
      "no-restricted-syntax": ["error", WHOLE_LISTS],
    },
  },
  {
    files: ["web/console/tests/**/*.ts", "web/console/*.ts"],
    extends: [tseslint.configs.recommended],
  },
);
