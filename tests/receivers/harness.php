
// Appended to the function of docs/how-to/receive-webhooks.md. `cases`: one case a line, one verdict a line. As the
// script of PHP's own server: 204 to what verifies and 401 to the rest.

/** A secret stands behind "=", one of several behind a colon, anything else as JSON behind "!". */
function secrets_in(string $field): mixed
{
    if (str_starts_with($field, '!') || str_starts_with($field, '=')) {
        $text = base64_decode(substr($field, 1));
        return $field[0] === '=' ? $text : json_decode($text);
    }
    $decode = fn (string $each): string => base64_decode(substr($each, 1));
    return $field === '' ? [] : array_map($decode, explode(',', $field));
}

function verdict(mixed $secrets, array $forms, string $body, int $now): string
{
    try {
        $said = array_unique(array_map(fn ($headers) => var_export(verify($secrets, $headers, $body, $now), true), $forms));
    } catch (TypeError) {
        return 'refused';
    }
    return count($said) === 1 ? $said[0] : 'not alike';
}

function cases(): void
{
    while (($line = fgets(STDIN)) !== false) {
        [$now, $secrets, $pairs, $body] = explode("\t", rtrim($line, "\n"));
        [$server, $given, $lists] = [[], [], []];
        foreach ($pairs === '' ? [] : explode(',', $pairs) as $pair) {
            [$name, $value] = array_map(base64_decode(...), explode(':', $pair));
            $key = 'HTTP_' . strtr(strtoupper($name), '-', '_');
            $server[$key] = isset($server[$key]) ? "$server[$key], $value" : $value; // as PHP's servers do
            $given[$name] = $server[$key]; // as getallheaders() does
            $lists[strtolower($name)][] = $value; // as frameworks do
        }
        echo verdict(secrets_in($secrets), [$server, $given, $lists], base64_decode($body), (int) $now), "\n";
    }
}

if (PHP_SAPI === 'cli') {
    cases();
} else {
    $now = time() + (str_starts_with($_SERVER['REQUEST_URI'], '/late') ? 302 : 0);
    $known = verify(secrets_in(getenv('SECRETS')), $_SERVER, file_get_contents('php://input'), $now);
    http_response_code($known ? 204 : 401);
}
