// What stands in a field and is no value of its kind: kept in the value's place, so that it is told and not left out.

export class Mistake {
    constructor(
        readonly text: string,
        readonly message: string,
    ) {}
}

/** Throws where one of the values is a mistake. */
export function refuseMistakes(values: Readonly<Record<string, unknown>> | Mistake): void {
    if (values instanceof Mistake) throw new Error(values.message);
    for (const [name, value] of Object.entries(values))
        if (value instanceof Mistake) throw new Error(`${name}: ${value.message}`);
}
