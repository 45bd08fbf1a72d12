import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

const service = process.env.FARHAND_URL ?? "http://127.0.0.1:8787";

export default defineConfig({
  plugins: [react()],
  root: import.meta.dirname,
  build: {
    outDir: "../../build/assets",
    // Other pages have their files beside the console's.
    emptyOutDir: false,
    // The page goes to its own folder too, because `/` of build/assets is not served.
    assetsDir: "console",
    // Inlined files would be data: URLs, which the policy of the page allows for images only.
    assetsInlineLimit: 0,
    // For the check of the size of the first load.
    manifest: true,
    license: { fileName: "console/licences.txt" },
    modulePreload: { polyfill: false },
    rollupOptions: { output: { hashCharacters: "hex" } },
  },
  server: { proxy: { "/api": { target: service } } },
});
