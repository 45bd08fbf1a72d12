import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/ui.css";
import "./styles/table.css";
import "./styles/filters.css";
import "./styles/rows.css";
import "./styles/frame.css";
import "./styles/output.css";
import { QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { BrowserRouter } from "react-router";
import { queryClient } from "./api/queries";
import { App } from "./frame/app";
import { Boundary } from "./frame/boundary";
import { applyTheme } from "./frame/theme";

applyTheme();
const root = document.getElementById("root");
if (!root) throw new Error("index.html has no #root");
createRoot(root).render(
  <StrictMode>
    <QueryClientProvider client={queryClient}>
      <BrowserRouter>
        <Boundary>
          <App />
        </Boundary>
      </BrowserRouter>
    </QueryClientProvider>
  </StrictMode>,
);
