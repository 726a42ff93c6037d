// JSON with integers of any size: a seed has up to 64 bits, which JavaScript's numbers do not hold.

const MARK = "\u0001integer:";

/** Strings, and numbers with their fraction and exponent. */
const STRING_OR_NUMBER = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/** Returns JSON in which each BigInt is a plain number. */
export function stringify(value: unknown, indent?: number): string {
    const text = JSON.stringify(value, (_, each) => (typeof each === "bigint" ? MARK + each : each), indent);
    return text.replace(/"\\u0001integer:(-?\d+)"/g, "$1");
}

/** Returns the value of a JSON text, with a BigInt for each integer whose digits a number would lose. */
export function parse(text: string): unknown {
    const value: unknown = JSON.parse(text);
    if (!/\d{16}/.test(text)) return value;
    const marked = text.replace(STRING_OR_NUMBER, (each) =>
        typeof parseInteger(each) === "bigint" ? JSON.stringify(MARK + each) : each,
    );
    return JSON.parse(marked, (_, each) =>
        typeof each === "string" && each.startsWith(MARK) ? BigInt(each.slice(MARK.length)) : each,
    );
}

/** Returns the integer that a text spells, as a BigInt where a number would lose digits; undefined for other texts. */
export function parseInteger(text: string): number | bigint | undefined {
    if (!/^-?\d+$/.test(text)) return undefined;
    const number = Number(text);
    return Number.isSafeInteger(number) ? number : BigInt(text);
}
