// Output that tries to hide, reorder or fake what the console shows. Each has what must be shown.
// The unit tests and the tests in a browser use the same table.

/** What the program prints, and the text of the first line that the console must show. */
export interface Attack {
  readonly name: string;
  readonly output: string;
  readonly shown: string;
}

export const ATTACKS: readonly Attack[] = [
  { name: "script element", output: "<script>alert(1)</script>", shown: "<script>alert(1)</script>" },
  { name: "image with handler", output: "<img src=x onerror=alert(1)>", shown: "<img src=x onerror=alert(1)>" },
  { name: "svg with handler", output: "<svg/onload=alert(1)>", shown: "<svg/onload=alert(1)>" },
  { name: "link", output: '<a href="javascript:alert(1)">x</a>', shown: '<a href="javascript:alert(1)">x</a>' },
  { name: "style element", output: "<style>*{display:none}</style>", shown: "<style>*{display:none}</style>" },
  { name: "character reference", output: "&lt;b&gt; &#x3c;i&#x3e; &amp;", shown: "&lt;b&gt; &#x3c;i&#x3e; &amp;" },
  { name: "closing elements", output: "</span></div></pre><h1>x", shown: "</span></div></pre><h1>x" },
  { name: "comment", output: "<!-- x --><!--", shown: "<!-- x --><!--" },
  { name: "template text", output: "{{constructor}} ${x} #{x}", shown: "{{constructor}} ${x} #{x}" },
  { name: "element inside a colour", output: "\u001b[31m<b>red</b>\u001b[0m", shown: "<b>red</b>" },
  { name: "element split by a colour", output: "<scr\u001b[31mipt>alert(1)</scr\u001b[0mipt>", shown: "<script>alert(1)</script>" },
  { name: "link of OSC 8", output: "\u001b]8;;https://evil.example/\u0007bank\u001b]8;;\u0007", shown: "bank" },
  { name: "link of OSC 8, other end", output: "\u001b]8;;javascript:alert(1)\u001b\\bank\u001b]8;;\u001b\\", shown: "bank" },
  { name: "link of OSC 8 with an id", output: "\u001b]8;id=1;file:///etc/passwd\u0007x\u001b]8;;\u0007", shown: "x" },
  { name: "window title", output: "\u001b]0;rm -rf\u0007ok", shown: "ok" },
  { name: "window title, icon", output: "\u001b]2;title\u001b\\ok", shown: "ok" },
  { name: "clipboard of OSC 52", output: "\u001b]52;c;cm0gLXJmIC8=\u0007ok", shown: "ok" },
  { name: "image of OSC 1337", output: "\u001b]1337;File=inline=1:AAAA\u0007ok", shown: "ok" },
  { name: "notification of OSC 9", output: "\u001b]9;hello\u0007ok", shown: "ok" },
  { name: "unfinished OSC", output: "ok\u001b]0;never ends", shown: "ok" },
  { name: "C1 OSC", output: "\u009d0;title\u009cok", shown: "ok" },
  { name: "device control string", output: "\u001bPq#0;2;0;0;0\u001b\\ok", shown: "ok" },
  { name: "application command", output: "\u001b_Gf=100;AAAA\u001b\\ok", shown: "ok" },
  { name: "privacy message", output: "\u001b^secret\u001b\\ok", shown: "ok" },
  { name: "clear the screen", output: "before\u001b[2Jafter", shown: "beforeafter" },
  { name: "cursor home", output: "before\u001b[Hafter", shown: "beforeafter" },
  { name: "cursor up and erase", output: "a\u001b[1A\u001b[2Kb", shown: "ab" },
  { name: "cursor to a column", output: "real\u001b[1Gfake", shown: "realfake" },
  { name: "alternative screen", output: "\u001b[?1049hfake\u001b[?1049l", shown: "fake" },
  { name: "bracketed paste", output: "\u001b[?2004hok", shown: "ok" },
  { name: "report of the cursor", output: "\u001b[6nok", shown: "ok" },
  { name: "reset of the terminal", output: "\u001bcok", shown: "ok" },
  { name: "other character set", output: "\u001b(0lqqk\u001b(B", shown: "lqqk" },
  { name: "C1 control sequence", output: "\u009b2Jok", shown: "ok" },
  { name: "unfinished control sequence", output: "ok\u001b[", shown: "ok" },
  { name: "hidden text", output: "a\u001b[8mhidden\u001b[0mb", shown: "ahiddenb" },
  { name: "text in the colour of the ground", output: "\u001b[38;2;12;17;23mhidden\u001b[0m", shown: "hidden" },
  { name: "bidi override", output: "user\u202etxt.exe", shown: "user⟨U+202E⟩txt.exe" },
  { name: "bidi isolate", output: "a\u2066b\u2069c", shown: "a⟨U+2066⟩b⟨U+2069⟩c" },
  { name: "bidi marks", output: "a\u200eb\u200fc\u061cd", shown: "a⟨U+200E⟩b⟨U+200F⟩c⟨U+061C⟩d" },
  { name: "zero width", output: "pass\u200bword\u2060\ufeff", shown: "pass⟨U+200B⟩word⟨U+2060⟩⟨U+FEFF⟩" },
  { name: "soft hyphen", output: "pass\u00adword", shown: "pass⟨U+00AD⟩word" },
  { name: "tag characters", output: "a\u{e0041}\u{e0042}", shown: "a⟨U+E0041⟩⟨U+E0042⟩" },
  { name: "line separator", output: "a\u2028b\u2029c", shown: "a⟨U+2028⟩b⟨U+2029⟩c" },
  { name: "blank letter", output: "a\u3164b\u115f", shown: "a⟨U+3164⟩b⟨U+115F⟩" },
  { name: "NUL and bell", output: "a\u0000b\u0007c", shown: "a␀b␇c" },
  { name: "delete", output: "a\u007fb", shown: "a␡b" },
  { name: "C1 control", output: "a\u0085b", shown: "a⟨U+0085⟩b" },
  { name: "overwritten by a carriage return", output: "harmful\rharmless", shown: "harmless" },
  { name: "overwritten by backspaces", output: "ab\b\bxy", shown: "xy" },
  { name: "lone escape", output: "a\u001b", shown: "a" },
  { name: "replacement characters", output: "a\ufff9b\ufffbc", shown: "a⟨U+FFF9⟩b⟨U+FFFB⟩c" },
];
