import { pages, type PageRow } from "../pages";

/** The pages that the user may open, in one part of the rail or in both. */
export const offered = (staff: boolean, rail?: PageRow["rail"]) =>
  pages.filter((page) => page.rail !== undefined && (rail === undefined || page.rail === rail) && (staff || !page.isForStaff));
