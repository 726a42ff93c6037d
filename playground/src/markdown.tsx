// Markdown as elements. The text becomes text nodes alone: no markup of it is ever parsed as HTML, and nothing is loaded.

import type { ComponentChildren, VNode } from "preact";
import { memo } from "preact/compat";
import { CopyButton } from "./copy";
import { Lexer, type Token, type Tokens } from "marked";
import { spelledOut } from "./visible";

/** Longer texts are shown as they are: laying them out as Markdown would block the page. */
const LONGEST = 100_000;

/** A longer paragraph, cell or heading has no emphasis and no links: the time to find them grows with its square. */
const LONGEST_PIECE = 4000;

/** Lists and quotations within one another, as a line begins them: each level costs time and stack. */
const DEEP = /^(?:[ \t]*(?:>|(?:[-*+]|\d{1,9}[.)])[ \t])){50}/m;

class BoundedLexer extends Lexer {
    override inlineTokens(text: string, tokens: Token[] = []): Token[] {
        if (text.length <= LONGEST_PIECE) return super.inlineTokens(text, tokens);
        tokens.push({ type: "text", raw: text, text, escaped: false });
        return tokens;
    }
}

const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1eeff}]/u;

const NAMED: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

function unescaped(text: string): string {
    return text.replace(/&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|([a-z]+));/gi, (whole, decimal, hex, name) => {
        if (name) return NAMED[name.toLowerCase()] ?? whole;
        const point = decimal ? Number(decimal) : parseInt(hex, 16);
        return point > 0 && point <= 0x10ffff ? String.fromCodePoint(point) : whole;
    });
}

/** Returns the address where it is one of the web or of mail; others, such as javascript:, are no links. */
function safeAddress(address: string): string | undefined {
    try {
        const url = new URL(address);
        return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : undefined;
    } catch {
        return undefined;
    }
}

/** The direction of lists, tables and quotations. `dir="auto"` would not look into their parts, which have their own. */
function directionOf(text: string): "rtl" | undefined {
    const letter = /\p{L}/u.exec(text)?.[0];
    return letter && RIGHT_TO_LEFT.test(letter) ? "rtl" : undefined;
}

function link(address: string, children: ComponentChildren): VNode {
    const href = safeAddress(address);
    if (!href) return <span>{children}</span>;
    return (
        <a href={href} target="_blank" rel="noopener noreferrer nofollow" title={href}>
            {children}
        </a>
    );
}

function inline(tokens: Token[] | undefined): ComponentChildren {
    return tokens?.map((token) => {
        switch (token.type) {
            case "strong":
                return <strong>{inline(token.tokens)}</strong>;
            case "em":
                return <em>{inline(token.tokens)}</em>;
            case "del":
                return <del>{inline(token.tokens)}</del>;
            case "codespan":
                return <code>{spelledOut(token.text)}</code>;
            case "br":
                return <br />;
            case "link":
                return link(token.href, inline(token.tokens));
            case "image":
                return <span class="image">[image: {link(token.href, token.text || token.href)}]</span>;
            case "html":
                return token.raw;
            case "text":
                return token.tokens ? inline(token.tokens) : unescaped(token.text);
            case "escape":
                return token.text;
            default:
                return token.raw;
        }
    });
}

function Code({ text, language }: { text: string; language: string }) {
    return (
        <figure class="code">
            <figcaption>
                <span>{language || "code"}</span>
                <CopyButton text={text} />
            </figcaption>
            <pre tabIndex={0} dir="ltr">
                <code>{spelledOut(text)}</code>
            </pre>
        </figure>
    );
}

function Table({ token }: { token: Tokens.Table }) {
    return (
        <div class="scroll" tabIndex={0} role="region" aria-label="Table">
            <table dir={directionOf(token.raw)}>
                <thead>
                    <tr>
                        {token.header.map((cell) => (
                            <th scope="col" dir="auto">{inline(cell.tokens)}</th>
                        ))}
                    </tr>
                </thead>
                <tbody>
                    {token.rows.map((row) => (
                        <tr>
                            {row.map((cell) => (
                                <td dir="auto">{inline(cell.tokens)}</td>
                            ))}
                        </tr>
                    ))}
                </tbody>
            </table>
        </div>
    );
}

function blocks(tokens: Token[]): ComponentChildren {
    return tokens.map((token) => {
        switch (token.type) {
            case "space":
            case "def":
                return null;
            case "heading": {
                // The page has the first two levels.
                const Heading = `h${Math.min(6, token.depth + 2)}` as "h3";
                return <Heading dir="auto">{inline(token.tokens)}</Heading>;
            }
            case "paragraph":
                return <p dir="auto">{inline(token.tokens)}</p>;
            case "code":
                return <Code text={token.text} language={token.lang ?? ""} />;
            case "blockquote":
                return <blockquote dir={directionOf(token.raw)}>{blocks(token.tokens ?? [])}</blockquote>;
            case "hr":
                return <hr />;
            case "table":
                return <Table token={token as Tokens.Table} />;
            case "list": {
                const items = (token as Tokens.List).items.map((item) => (
                    <li>
                        {item.task && (item.checked ? "☑ " : "☐ ")}
                        {blocks(item.tokens)}
                    </li>
                ));
                const dir = directionOf(token.raw);
                if (!token.ordered) return <ul dir={dir}>{items}</ul>;
                return (
                    <ol dir={dir} start={Number(token.start) || 1}>
                        {items}
                    </ol>
                );
            }
            case "checkbox":
                return null;
            case "text":
                return <span dir="auto">{token.tokens ? inline(token.tokens) : unescaped(token.text)}</span>;
            default:
                return <p dir="auto">{token.raw}</p>;
        }
    });
}

/** Shows a text as Markdown. `whole` is false while it grows. */
export const Markdown = memo(function Markdown({ text, whole }: { text: string; whole: boolean }) {
    if (text.length > (whole ? LONGEST : LONGEST / 5)) {
        return (
            <>
                {whole && <p class="note">This text is long, and shown as it is.</p>}
                <pre class="plain" dir="auto" tabIndex={0}>
                    {text}
                </pre>
            </>
        );
    }
    let tokens: Token[];
    try {
        if (DEEP.test(text)) throw new RangeError("too deep");
        tokens = new BoundedLexer().lex(text);
    } catch {
        return (
            <pre class="plain" dir="auto">
                {text}
            </pre>
        );
    }
    return <div class="markdown">{blocks(tokens)}</div>;
});
