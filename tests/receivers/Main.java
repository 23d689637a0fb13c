// Compiled with the function of docs/how-to/receive-webhooks.md. `cases`: one case a line, one verdict a line;
// `serve`: a server that prints its port and answers 204 to what verifies and 401 to the rest.

import com.sun.net.httpserver.HttpServer;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

final class Main {
    private static byte[] bytes(String encoded) {
        return Base64.getDecoder().decode(encoded);
    }

    private static String text(String encoded) {
        return new String(bytes(encoded), StandardCharsets.UTF_8);
    }

    private static List<String> parts(String field) {
        return field.isEmpty() ? List.of() : List.of(field.split(","));
    }

    /** An encoded secret may be empty, so each stands behind a colon. */
    private static List<String> secretsIn(String field) {
        return parts(field).stream().map(each -> text(each.substring(1))).toList();
    }

    private static void cases() throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] fields = line.split("\t", -1);
            Map<String, List<String>> headers = new HashMap<>();
            for (String pair : parts(fields[2])) {
                String[] header = pair.split(":", -1);
                headers.computeIfAbsent(text(header[0]), name -> new ArrayList<>()).add(text(header[1]));
            }
            System.out.println(verdict(fields[1], headers, bytes(fields[3]), Long.parseLong(fields[0])));
        }
    }

    /** A secret stands behind "=", anything else than one or several behind "!": the compiler refuses it. */
    private static String verdict(String field, Map<String, List<String>> headers, byte[] body, long now)
            throws Exception {
        if (field.startsWith("!")) {
            return "refused";
        }
        boolean one = field.startsWith("=");
        boolean said = one
                ? Webhooks.verify(text(field.substring(1)), headers, body, now)
                : Webhooks.verify(secretsIn(field), headers, body, now);
        if (headers.values().stream().allMatch(values -> values.size() == 1)) {
            Map<String, String> single = new HashMap<>();
            headers.forEach((name, values) -> single.put(name, values.get(0)));
            boolean again = one
                    ? Webhooks.verify(text(field.substring(1)), single, body, now)
                    : Webhooks.verify(secretsIn(field), single, body, now);
            if (again != said) {
                return "not alike";
            }
        }
        return taken(headers, body) ? "taken" : String.valueOf(said);
    }

    /** Whether something was not refused, although it is no form of headers or of a body. */
    private static boolean taken(Map<String, List<String>> headers, byte[] body) throws Exception {
        List<Map<String, ?>> wrong = List.of(
                Map.of("headers", headers, "isBase64Encoded", true),
                Map.of("x-service-webhook-timestamp", 1),
                Map.of("x-service-webhook-signature", List.of(2)));
        for (Map<String, ?> form : wrong) {
            try {
                Webhooks.verify("s", form, body, 0);
                return true;
            } catch (IllegalArgumentException refused) {
                if (!refused.getMessage().contains("must map")) {
                    return true;
                }
            }
        }
        return false;
    }

    private static void serve(List<String> secrets) throws Exception {
        var server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.createContext("/", exchange -> {
            byte[] body = exchange.getRequestBody().readAllBytes();
            boolean late = exchange.getRequestURI().getPath().startsWith("/late");
            long now = System.currentTimeMillis() / 1000 + (late ? 302 : 0);
            try {
                boolean known = Webhooks.verify(secrets, exchange.getRequestHeaders(), body, now);
                exchange.sendResponseHeaders(known ? 204 : 401, -1);
            } catch (Exception broken) {
                exchange.sendResponseHeaders(500, -1);
            }
            exchange.close();
        });
        server.start();
        System.out.println(server.getAddress().getPort());
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("cases")) {
            cases();
        } else {
            serve(secretsIn(arguments[1]));
        }
    }
}
