// Compiled with the function of docs/how-to/receive-webhooks.md. `cases`: one case a line, one verdict a line;
// `serve`: a server that prints its port and answers 204 to what verifies and 401 to the rest.
package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

func decode(encoded string) string {
	decoded, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		panic(err)
	}
	return string(decoded)
}

func parts(field string) []string {
	if field == "" {
		return nil
	}
	return strings.Split(field, ",")
}

// An encoded secret may be empty, so each stands behind a colon.
func secretsIn(field string) []string {
	var secrets []string
	for _, each := range parts(field) {
		secrets = append(secrets, decode(each[1:]))
	}
	return secrets
}

// A secret stands behind "=", anything else than one or several behind "!": the compiler refuses it.
func verdict(secrets string, header http.Header, given map[string][]string, events []event, body []byte, now time.Time) string {
	if strings.HasPrefix(secrets, "!") {
		return "refused"
	}
	var said []bool
	if strings.HasPrefix(secrets, "=") {
		said = verdicts(decode(secrets[1:]), header, given, events, body, now)
	} else {
		said = verdicts(secretsIn(secrets), header, given, events, body, now)
	}
	for _, each := range said {
		if each != said[0] {
			return "not alike"
		}
	}
	return strconv.FormatBool(said[0])
}

// What aws-lambda-go gives of an event: of an HTTP API without MultiValueHeaders.
type event struct {
	Headers           map[string]string
	MultiValueHeaders map[string][]string
	Body              string
	IsBase64Encoded   bool
}

func verdicts[S string | []string](secrets S, header http.Header, given map[string][]string, events []event, body []byte, now time.Time) []bool {
	said := []bool{Verify(secrets, header, body, now), Verify(secrets, given, body, now)}
	for _, each := range events {
		content := []byte(each.Body)
		if each.IsBase64Encoded {
			content = []byte(decode(each.Body))
		}
		if each.MultiValueHeaders != nil {
			said = append(said, Verify(secrets, each.MultiValueHeaders, content, now))
		} else {
			said = append(said, Verify(secrets, each.Headers, content, now))
		}
	}
	return said
}

func cases() {
	reader := bufio.NewReader(os.Stdin)
	for {
		line, err := reader.ReadString('\n')
		if err == io.EOF {
			return
		}
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		seconds, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil {
			panic(err)
		}
		header, given := http.Header{}, map[string][]string{}
		for _, pair := range parts(fields[2]) {
			name, value, _ := strings.Cut(pair, ":")
			header.Add(decode(name), decode(value))
			given[decode(name)] = append(given[decode(name)], decode(value))
		}
		var events []event
		if err := json.Unmarshal([]byte(decode(fields[4])), &events); err != nil {
			panic(err)
		}
		fmt.Println(verdict(fields[1], header, given, events, []byte(decode(fields[3])), time.Unix(seconds, 0)))
	}
}

func serve() {
	secrets := secretsIn(os.Args[2])
	http.HandleFunc("/", func(response http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			panic(err)
		}
		now := time.Now()
		if strings.HasPrefix(request.URL.Path, "/late") {
			now = now.Add(302 * time.Second)
		}
		if Verify(secrets, request.Header, body, now) {
			response.WriteHeader(http.StatusNoContent)
		} else {
			response.WriteHeader(http.StatusUnauthorized)
		}
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	panic(http.Serve(listener, nil))
}

func main() {
	if os.Args[1] == "cases" {
		cases()
	} else {
		serve()
	}
}
